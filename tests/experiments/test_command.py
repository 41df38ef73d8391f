"""Options and the printed command come from the request: what is printed asks for the same."""

import shlex
import sys

import pytest
import typer
from typer.testing import CliRunner

from normlab.cli._request import add_command, explicit
from normlab.errors import ConfigError
from normlab.experiments.command import command_line, flags, from_texts, make
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.stability.request import StabilityRequest
from normlab.plugins import import_modules
from normlab.schemes import SCHEMES
from normlab.tasks import task
from tests.own_schemes import MODULE

REQUESTS = [
    CompareRequest(),
    CompareRequest(schemes=("pre_norm", "block_attn_res(blocks=2)"), depths=(2, 4), tokens=9000, lrs=(1e-3, 0.0123)),
    CompareRequest(task=task("dyck", pairs=2, depth=5), budget="2h", baseline="pre_norm"),
    StabilityRequest(clip=None, edges="learning", warmups=(0, 7), factor=2.5),
    LengthgenRequest(
        task=task("tomita", number=3), preset="two_layer", positions=("nope", "rope"), depth=3, dims=(8, 16)
    ),
    LengthgenRequest(task=task("dyck"), test_task=task("dyck", depth=7), preset="two_layer", weight_decay=0.5),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: command_line(r)[:60])
def test_the_printed_command_asks_for_the_same(request_):
    app, found = typer.Typer(), []
    kind = type(request_)

    def go(context, given):
        found.append(make(kind, from_texts(kind, explicit(context, given))))

    add_command(app, kind, go, name="go", help="Go.")
    words = shlex.split(command_line(request_))[2:]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert found == [request_]


@pytest.mark.parametrize("kind", [CompareRequest, StabilityRequest, LengthgenRequest])
def test_every_option_is_declared_once_and_helps(kind):
    options = list(flags(kind))
    assert len({flag.name for flag in options}) == len(options)
    assert all(flag.help and flag.name.startswith("--") for flag in options)
    assert "--schemes" in {flag.name for flag in options}


def test_a_refusal_names_the_option():
    with pytest.raises(ConfigError, match=r"^--depth: give one or more"):
        make(CompareRequest, from_texts(CompareRequest, {"depths": "0"}))
    with pytest.raises(ConfigError, match=r"--lr takes numbers"):
        from_texts(LengthgenRequest, {"lrs": "fast"})
    with pytest.raises(ConfigError, match="--clip takes one number, or 'none'"):
        from_texts(StabilityRequest, {"clip": "1,2"})
    assert from_texts(StabilityRequest, {"clip": "none"}) == {"clip": None}


def test_the_printed_command_imports_a_scheme_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_here.py").write_text(MODULE.replace("own_norm", "own_here"))
    path = str(tmp_path / "own_here.py")
    import_modules([path])
    try:
        command = command_line(CompareRequest(schemes=("pre_norm", "own_here"), tokens=9))
    finally:
        del SCHEMES["own_here"]
    assert command == f"normlab compare --schemes pre_norm,own_here --tokens 9 --import {path}"
