"""What the verdicts advise can be typed: every command they name exists and takes the options and schemes it is given."""

import re

import pytest

import normlab as nl
from normlab.cli import app
from normlab.probes.advice import TEXTS

COMMAND = re.compile(r"normlab ((?:[a-z]+)(?: (?:--)?[A-Za-z_][\w,.-]*)*)")


def commands():
    return [(verdict, found) for verdict, text in TEXTS.items() for found in COMMAND.findall(text.advice)]


def test_there_are_commands_to_check():
    assert len(commands()) >= 5


@pytest.mark.parametrize(("verdict", "words"), commands(), ids=lambda value: value.replace(" ", "_"))
def test_advised_commands_exist(verdict, words):
    import typer

    root = typer.main.get_command(app)
    name, *rest = words.split()
    assert name in root.commands, f"{verdict} advises `normlab {name}`"
    command = root.commands[name]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options
    for names in (rest[i + 1] for i, word in enumerate(rest) if word == "--schemes"):
        assert set(names.split(",")) <= set(nl.SCHEMES)
