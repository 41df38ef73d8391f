"""The example of CONTRIBUTING.md is run as it stands, and passes the whole contract suite."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import normlab as nl

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
