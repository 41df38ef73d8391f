import json

import pytest

from normlab.cli import run

TINY = ["--depth", "2", "--dim", "16", "--heads", "2", "--batch", "4", "--length", "8", "--data", "tomita(number=4)"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--schemes", ""], "--schemes is empty; give one name or more"),
        (["--warmups", ""], "give at least one length of warm-up"),
        (["--depth", ""], "numbers of layers"),
        (["--heads", "5"], "5 heads do not divide"),
    ],
)
def test_a_map_of_nothing_is_a_sentence(options, sentence, tmp_path, capsys):
    assert run(["stability", *options, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out" / "sweep.json").exists()


def test_stability(tmp_path, capsys):
    arguments = ["stability", "--schemes", "no_norm", *TINY, "--steps", "20", "--warmups", "0", "--lrs", "1e-2,10"]
    arguments += ["--factor", "1000", "--clip", "0", "--out", str(tmp_path)]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {cell["verdict"] for cell in result["cells"]} <= {"stable", "flat", "nan", "above", "spike"}
    assert run(["report", str(tmp_path)]) == 0
    assert "no_norm at 2 layers" in capsys.readouterr().out
