import json

import pytest

import normlab as nl
from normlab.cli import run


def test_every_scheme_has_an_entry(tmp_path, capsys):
    arguments = ["atlas", "--schemes", "all", "--depth", "4", "--dim", "32", "--out", str(tmp_path), "--json"]
    assert run(arguments) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["scheme"] for entry in entries] == list(nl.SCHEMES)
    for entry in entries:
        assert len(entry["stream"]) == len(entry["law"]) == 9
        assert len(entry["influence"]) == len(entry["effect"]) == 8
        # ReZero starts with every branch switched off, so no branch has a gradient.
        assert sum(entry["gradient_share"]) == pytest.approx(0 if entry["scheme"] == "rezero" else 1)
        assert (entry["mixing"] is None) or len(entry["mixing"]) == 9
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in nl.SCHEMES)
    assert json.loads((tmp_path / "atlas.json").read_text()) == entries


def test_bad_use(capsys):
    assert run(["atlas", "--schemes", "pre_norm,peri"]) == 2
    assert "did you mean 'peri_norm'" in capsys.readouterr().err
    assert run(["atlas", "--depth", "-3"]) == 2
    assert "depth" in capsys.readouterr().err


def test_options_and_families_are_schemes_too(tmp_path, capsys):
    shape = ["--depth", "4", "--dim", "32", "--out", str(tmp_path)]
    assert run(["atlas", "--schemes", "sphere,block_attn_res(blocks=2, heads=2)", *shape, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [e["scheme"] for e in entries] == ["ngpt", "block_attn_res(heads=2, blocks=2)"]
    page = (tmp_path / "report.html").read_text().replace("&#39;", "'")
    assert "normlab atlas --schemes 'ngpt,block_attn_res(heads=2, blocks=2)' --depth 4" in page
