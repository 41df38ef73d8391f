import json

from normlab.cli import run


def test_all_of_them(capsys, tmp_path):
    assert run(["claims", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["entries"]
    assert len(found) == 113
    assert all(entry["criterion"] and entry["verdict"] for entry in found)
    assert run(["claims", "--seed", "003", "--page", str(tmp_path)]) == 0
    assert (tmp_path / "seed-003.html").exists()
    assert "24 claims" in capsys.readouterr().out


def test_the_table(capsys):
    assert run(["claims", "--seed", "004"]) == 0
    out = capsys.readouterr().out
    assert "004-07" in out
    assert "10 claims:" in out


def test_one_again(capsys, tmp_path):
    assert run(["claims", "run", "002-17", "--out", str(tmp_path), "--strict"]) == 0
    assert "the verdict holds" in capsys.readouterr().out
    assert run(["claims", "run", "003-16", "--budget", "1s", "--out", str(tmp_path), "--json", "--strict"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["holds"]) == ("undecided", False)


def test_bad_use(capsys, tmp_path):
    assert run(["claims", "run", "00202"]) == 2
    assert "unknown claim '00202'; did you mean" in capsys.readouterr().err
    assert run(["claims", "run", "002-17", "--budget", "soon"]) == 2
    assert "90s, 30m or 2h" in capsys.readouterr().err
    assert run(["claims", "run", "000-24"]) == 2
    assert "cannot be measured here" in capsys.readouterr().err
    assert run(["claims", "--evidence", str(tmp_path / "none")]) == 2
    (tmp_path / "x.json").write_text(
        '{"schema": 9, "name": "x", "measurements": [], "seeds": [], "settings": {}, "criteria": {}}'
    )
    assert run(["claims", "--evidence", str(tmp_path)]) == 2
    assert "from another version" in capsys.readouterr().err
    assert run(["claims", "--seed", "9"]) == 2
    assert "unknown seed" in capsys.readouterr().err
