import json

import pytest

from normlab.cli import run


def test_command_and_page(capsys, tmp_path):
    arguments = [
        "--schemes",
        "post_norm,pre-norm",
        "--dim",
        "16",
        "--depths",
        "1,2",
        "--draws",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert run(["theory", "mean-field", "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["scheme"] for s in found["schemes"]] == ["post_norm", "pre_norm"]
    assert (tmp_path / "mean-field.html").exists()
    assert run(["theory", "mean-field", *arguments]) == 0
    assert "Exponents and factors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--depths", "4"], "two depths or more"),
        (["--depths", "a,b"], "whole numbers"),
        (["--schemes", "prenorm"], "did you mean 'pre_norm'"),
    ],
)
def test_bad_input(arguments, words, capsys, tmp_path):
    assert run(["theory", "mean-field", "--out", str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_widths(capsys, tmp_path):
    shape = ["--depths", "1,2", "--draws", "2", "--tokens", "4", "--out", str(tmp_path)]
    assert run(["theory", "mean-field", "--schemes", "post_norm", "--dims", "16,32", *shape, "--json"]) == 0
    (sweep,) = json.loads(capsys.readouterr().out)["widths"]
    assert sweep["dims"] == [16, 32]
    assert 0 < sweep["exponent"] < sweep["bound_exponent"]
    assert run(["theory", "mean-field", "--schemes", "post_norm", "--dims", "16", *shape]) == 2
    assert "two widths" in capsys.readouterr().err
