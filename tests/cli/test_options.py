import pytest
import torch
import typer
from typer.testing import CliRunner

from normlab.cli._options import OldScheme, pick_device
from normlab.errors import ConfigError


def test_a_device_is_taken_as_it_is_named_and_auto_takes_one_that_is_here():
    assert pick_device("cpu") == "cpu"
    here = [torch.cuda.is_available() and "cuda", torch.backends.mps.is_available() and "mps", "cpu"]
    assert pick_device("auto") == next(name for name in here if name)


def test_a_device_that_is_absent_is_no_fallback():
    with pytest.raises(ConfigError, match="did you mean 'cuda'"):
        pick_device("cudda")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="'cuda:1' is not available here"):
            pick_device("cuda:1")


def test_the_old_spelling_answers_with_the_new_one():
    app = typer.Typer()

    @app.command()
    def go(scheme: OldScheme = None) -> None:
        typer.echo("went")

    assert CliRunner().invoke(app, []).stdout == "went\n"
    refused = CliRunner().invoke(app, ["--scheme", "mhc"]).exception
    assert isinstance(refused, ConfigError)
    assert "give --schemes 'mhc'" in str(refused)
