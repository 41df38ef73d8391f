"""Options from the fields of a request, and what was really typed. experiments/test_command.py has the way back."""

from typing import ClassVar

import pytest
import typer
from typer.testing import CliRunner

from normlab.cli._request import add_command, asked, explicit
from normlab.errors import ConfigError
from normlab.experiments.request import Request, option


class Walk(Request):
    what: ClassVar[str] = "walk"
    kind: ClassVar[str] = "walk"

    steps: int = option(3, "How many.", ge=1)
    sizes: tuple[float, ...] = option((0.5,), "How far.", flag="--size")
    end: str | None = option(None, "Where to.")


def called(*words):
    app, seen = typer.Typer(), []
    add_command(app, Walk, lambda context, given: seen.append((given, explicit(context, given))), name="go", help="Go.")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return seen[0]


def test_defaults_are_the_requests_own():
    given, typed = called()
    assert asked(Walk, given) == Walk()
    assert typed == {}


def test_what_was_typed_is_known_even_where_it_is_the_default():
    given, typed = called("--steps", "3", "--size", "1,2.5")
    assert set(typed) == {"steps", "sizes"}
    assert asked(Walk, given) == Walk(sizes=(1.0, 2.5))


def test_a_value_that_is_refused_is_named_by_its_option():
    given, _ = called("--steps", "0")
    with pytest.raises(ConfigError, match=r"^--steps: "):
        asked(Walk, given)
