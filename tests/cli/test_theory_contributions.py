import json

from normlab.cli import run


def test_shares_by_depth(capsys, tmp_path):
    shape = ["--depth", "24", "--dim", "32", "--out", str(tmp_path)]
    assert run(["theory", "contributions", *shape, "--json"]) == 0
    pre, post = json.loads(capsys.readouterr().out)["schemes"]
    assert pre["share"][-1] < post["share"][-1]
    assert run(["theory", "contributions", *shape, "--init", "gpt2", "--schemes", "pre_norm"]) == 0
    assert "pre_norm: the last of 24 layers is" in " ".join(capsys.readouterr().out.split())
    assert "share of the stream's norm" in (tmp_path / "contributions.html").read_text()


def test_bad_use(capsys):
    assert run(["theory", "contributions", "--init", "xavier"]) == 2
    assert "init" in capsys.readouterr().err
    assert run(["theory", "contributions", "--schemes", "prenorm"]) == 2
    assert "did you mean 'pre_norm'" in capsys.readouterr().err
