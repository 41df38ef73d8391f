import json

from normlab.cli import run
from normlab.experiments.runs.folder import prepare
from normlab.experiments.sweep import FORMAT, SweepFile
from tests.experiments.tiny import tiny


def test_report_of_nothing(tmp_path, capsys):
    assert run(["report", str(tmp_path)]) == 2
    assert "it has no sweep.json" in capsys.readouterr().err


def test_a_sweep_that_has_not_begun_says_what_waits(tmp_path, capsys):
    SweepFile(FORMAT, "compare", {}).write(tmp_path)
    prepare(tmp_path / "first", tiny())
    assert run(["report", str(tmp_path), "--json"]) == 0
    (progress,) = json.loads(capsys.readouterr().out)["progress"]
    assert [(r["run"], r["state"], r["steps"]) for r in progress["runs"]] == [("first", "waiting", 8)]
    assert run(["report", str(tmp_path)]) == 0
    assert "1 waiting" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()
