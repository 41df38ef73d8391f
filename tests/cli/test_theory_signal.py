import json

import pytest

from normlab.cli import run


def test_the_signal_falls_like_the_norm_grows(capsys, tmp_path):
    shape = ["--layers", "12", "--n", "8", "--d", "16", "--beta", "9", "--seeds", "2", "--out", str(tmp_path)]
    assert run(["theory", "signal", "--schemes", "pre,post", *shape, "--json"]) == 0
    pre, post = json.loads(capsys.readouterr().out)["rows"]
    assert pre["gradient first/last"] > 4
    assert pre["gradient x norm, first/last"] == pytest.approx(1, rel=0.4)
    assert post["gradient first/last"] == pytest.approx(1, rel=0.3)
    assert run(["theory", "signal", "--schemes", "pre", *shape]) == 0
    assert "pre_norm" in capsys.readouterr().out
    assert (tmp_path / "signal.html").exists()


def test_bad_use(capsys):
    assert run(["theory", "signal", "--schemes", "mhc"]) == 2
    assert "do not cover" in capsys.readouterr().err
