import json
import subprocess
import sys

import pytest

from normlab.cli import run
from normlab.schemes import SCHEMES

KEYS = {"name", "family", "equation", "citation", "extra_parameters", "growth", "init", "traps", "traffic", "options"}


def test_the_table_names_every_scheme(capsys):
    assert run(["schemes"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in SCHEMES)


def test_json_is_all_there_is_on_stdout(capsys):
    assert run(["schemes", "--json"]) == 0
    cards = json.loads(capsys.readouterr().out)
    assert len(cards) >= 25
    assert [card["name"] for card in cards] == list(SCHEMES)
    for card in cards:
        assert set(card) >= KEYS
        assert all(card[key] for key in ("equation", "citation", "growth", "family", "extra_parameters"))


@pytest.mark.parametrize("name", ["block-attn-res", "keel"])
def test_a_card(name, capsys):
    assert run(["schemes", "show", name]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("equation", "citation", "traps", "growth"))
    assert run(["schemes", "show", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == name.replace("-", "_")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schemes", "show", "peri_nrom"], "did you mean 'peri_norm'"),
        (["schemes", "show"], "Missing argument"),
        (["scheme"], "No such command"),
        (["schemes", "--jsn"], "No such option"),
    ],
)
def test_bad_use_is_a_sentence_and_exit_2(arguments, words):
    done = subprocess.run([sys.executable, "-m", "normlab", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_version_and_broken_pipe():
    done = subprocess.run([sys.executable, "-m", "normlab", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("normlab ")
    pipe = subprocess.run(
        f"{sys.executable} -m normlab schemes --json | head -1", shell=True, capture_output=True, text=True
    )
    assert pipe.stdout == "[\n"
    assert "Traceback" not in pipe.stderr
