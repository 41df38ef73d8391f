"""The examples of CONTRIBUTING.md are run as they stand: the scheme passes the whole contract suite."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import normlab as nl
from normlab.experiments.command import command_line
from normlab.probes.judge import advice, verdicts
from tests.experiments.tiny import sweep_of
from tests.probes.judge.test_planted import BASE, ODD, layers

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def block(name):
    return re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", TEXT, re.S).group(1)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """As a user's own module on the path: DDP's worker processes import it too."""
    (tmp_path / "leaky_norm_example.py").write_text(block("scheme"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield importlib.import_module("leaky_norm_example")
    nl.SCHEMES.pop("leaky_norm", None)
    sys.modules.pop("leaky_norm_example", None)


def test_the_example_is_a_scheme(module):
    names = {"nl": nl, "LeakyNorm": module.LeakyNorm}
    exec(block("use"), names)
    assert names["model"].scheme.config == nl.scheme("leaky_norm")
    assert nl.TransformerConfig.from_yaml(names["model"].config.to_yaml()) == names["model"].config


def test_it_costs_one_file_and_one_line():
    assert block("scheme").count("\n") < 70


def test_the_example_is_a_rule(monkeypatch):
    monkeypatch.setattr(advice, "TEXTS", dict(advice.TEXTS))
    monkeypatch.setattr(verdicts, "TEXTS", advice.TEXTS)
    names = {}
    exec(compile(block("rule"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    assert names["quiet_ffn"](BASE) is None
    found = names["quiet_ffn"](layers(ffn_norm=0.001))
    assert (found.layers, found.subject, found.severity) == ((ODD,), "branches", "warn")
    assert f"{found.value:.3g}" in found.title


def test_the_example_is_an_experiment(tmp_path):
    names = {}
    exec(compile(block("experiment"), "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    asked = names["WidthRequest"](dims=(4, 8), steps=3)
    made_by = names["Width"]()
    found = made_by.carry_out(asked, sweep_of(tmp_path))
    assert set(found.losses) == {4, 8}
    assert f"{min(found.losses.values()):.3f}" in found.answer
    page = made_by.write(found, tmp_path)
    assert found.answer in page.read_text(encoding="utf-8")
    assert command_line(asked) == "normlab width --dims 4,8 --steps 3"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert made_by.carry_out(asked, sweep_of(tmp_path)) == found  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")} == before
