import json

import pytest

from normlab.cli import run
from normlab.schemes import SCHEMES


def test_bibtex_of_a_paper(capsys):
    assert run(["cite", "mhc", "pre_norm"]) == 0
    out = capsys.readouterr().out
    assert "eprint = {2512.24880}" in out
    assert "eprint = {1809.10853}" in out
    assert out.count("@misc{") == 2


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_has_an_entry(name, capsys):
    assert run(["cite", name, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["bibtex"].count("{") == entry["bibtex"].count("}")
    if "arXiv" in entry["citation"]:
        assert "eprint" in entry["bibtex"]


def test_an_unknown_scheme_is_a_sentence(capsys):
    assert run(["cite", "mch"]) == 2
    assert "did you mean 'mhc'" in capsys.readouterr().err
