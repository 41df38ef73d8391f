"""The examples of CONTRIBUTING.md are run as they stand: the scheme passes the whole contract suite."""

import html
import importlib
import re
import sys
from pathlib import Path

import pytest

import normlab as nl
from normlab.experiments.command import command_line
from normlab.experiments.compare.experiment import Compare
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.sweep import read_runs, read_sweep
from normlab.probes.judge import advice, verdicts
from normlab.schemes import label
from normlab.tasks import task
from tests.experiments.tiny import sweep_of
from tests.own_schemes import fresh
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


SMALL = {"dim": 16, "heads": 2, "batch": 4, "length": 8, "tokens": 256, "seeds": 2}


def test_the_example_is_compared_by_two_workers(module, tmp_path):
    """The command as it stands, smaller; then what another process reads, refuses and continues."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "leaky_norm.py").write_text(block("scheme"))
    (command,) = re.findall(r"normlab (compare .*)", TEXT.split("<!-- example: compare -->")[1].split("```")[1])
    small = [word for key, value in SMALL.items() for word in (f"--{key}", str(value))]
    words = [
        *command.split(),
        *small,
        "--data",
        "tomita",
        "--depth",
        "1",
        "--lrs",
        "3e-3",
        "--out",
        "out",
    ]  # the last counts
    done = fresh(*words, cwd=place)
    assert done.returncode == 0, done.stderr
    runs = read_runs(place / "out")
    assert {(label(run.config.model.scheme), run.seed) for run in runs} == {
        (scheme, seed) for scheme in ("pre_norm", "leaky_norm") for seed in (0, 1)
    }
    here = CompareRequest(schemes=("pre_norm", "leaky_norm"), task=task("tomita"), depths=(1,), lrs=(3e-3,), **SMALL)
    assert read_sweep(place / "out").external == {"leaky_norm": {"module": "./leaky_norm.py"}}
    Compare().carry_out(here, sweep_of(tmp_path / "here"))
    assert {run.name: run.loss for run in runs} == {run.name: run.loss for run in read_runs(tmp_path / "here")}

    read = fresh(cwd=place, code=READERS)
    assert read.returncode == 0, read.stderr
    assert "['leaky_norm', 'pre_norm'] imported: False" in read.stdout
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    sentence = "The code of the scheme 'leaky_norm' is not loaded: its runs are shown, "
    assert sentence in html.unescape(page)
    assert "give --import ./leaky_norm.py" in html.unescape(page)

    stamps = {path: path.stat().st_mtime_ns for path in place.glob("out/*/summary.json")}
    bare = [word for word in words if word not in ("--import", "./leaky_norm.py")]
    refused = fresh(*bare, cwd=place)
    assert refused.returncode == 2
    assert "unknown scheme 'leaky_norm'; it comes from the module './leaky_norm.py'" in refused.stderr
    assert "give --import ./leaky_norm.py" in refused.stderr
    again = fresh(*words, cwd=place)
    assert again.returncode == 0, again.stderr
    assert sentence not in html.unescape((place / "out" / "report.html").read_text(encoding="utf-8"))
    assert stamps == {path: path.stat().st_mtime_ns for path in place.glob("out/*/summary.json")}


READERS = """
import sys
from pathlib import Path
from normlab.cli import run
from normlab.ui.feed import FolderFeed

assert run(["report", "out"]) == 0
feed = FolderFeed(Path("out"))
feed.refresh()
print(sorted({one.facts.scheme for one in feed.runs.values()}), "imported:", "leaky_norm" in sys.modules)
"""


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
