import json

import pytest

from normlab.cli import run as cli

SMALL = ["lengthgen", "--set", "vocab=8", "--schemes", "pre_norm,post-norm", "--seeds", "2", "--steps", "20", "--batch", "4",
         "--train-length", "4", "--workers", "1"]  # fmt: skip


def call(*arguments):
    return cli([str(a) for a in arguments])


def test_theory_compares_a_finished_run(tmp_path, capsys):
    assert call(*SMALL, "--out", tmp_path, "--seeds", "1", "--schemes", "post_norm", "--json") == 0
    capsys.readouterr()
    assert call("theory", "set-complement", "--vocab", "16", "--run", tmp_path / "post_norm-nope-seed0", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert all(claim["holds"] for claim in result["claims"])
    assert len(result["trained"]["findings"]) == 3
    folder = tmp_path / "post_norm-nope-seed0"
    assert call("theory", "set-complement", "--vocab", "8", "--run", folder, "--weights", "bema", "--json") == 0
    other = json.loads(capsys.readouterr().out)["trained"]
    assert (other["weights"], result["trained"]["weights"]) == ("bema", "raw")
    assert other["lengths"] != result["trained"]["lengths"]
    assert call("theory", "set-complement", "--run", folder, "--weights", "bma") == 2
    assert "did you mean 'bema'" in capsys.readouterr().err
    assert call("theory", "set-complement", "--run", tmp_path / "none") == 2
    assert "is not a finished run" in capsys.readouterr().err


def test_laws_are_brought_to_the_wanted_total_variation(capsys):
    assert call("theory", "set-complement", "--vocab", "12", "--tv", "0.02", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trained"] is None
    (there,) = [law for law in found["laws"] if law["length"] == 3]
    assert (there["tv"], there["tv_with_norm"]) == pytest.approx((0.02, 0.02), rel=1e-6)
    assert [law["length"] for law in found["laws"]] == list(range(1, 12))
