"""What a folder says of a sweep that is not finished, while others work in it."""

import json
import time

import pytest

from normlab.cli import run as command
from normlab.experiments.progress import read_progress
from normlab.experiments.runs.folder import prepare
from normlab.experiments.sweep import FORMAT, SweepFile
from normlab.store import Heartbeat, is_locked, last_beat, locked
from tests.experiments.tiny import alone, tiny


@pytest.fixture
def sweep(tmp_path):
    """Five runs: finished, running, stopped, waiting, failed; and a damaged one."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    SweepFile(FORMAT, "compare", {}).write(folder)
    for name in ("done", "running", "stopped", "waiting", "failed", "damaged"):
        prepare(folder / name, tiny())
    alone(folder / "done")
    for name in ("running", "stopped"):
        (folder / name / "log.jsonl").write_text('{"kind": "train", "step": 3, "loss": 1.0}\n')
    (folder / "failed" / "failure.json").write_text(json.dumps({"error": "the file vanished"}))
    (folder / "damaged" / "config.yaml").write_bytes(b"\xff")
    return folder


def test_every_state_is_told(sweep):
    with locked(sweep), locked(sweep / "running"):
        found = read_progress(sweep)
        assert found.working
    states = {run.run: run.state for run in found.runs}
    assert states == {
        "done": "finished", "running": "running", "stopped": "stopped", "waiting": "waiting", "failed": "failed",
        "damaged": "damaged",
    }  # fmt: skip
    runs = {run.run: run for run in found.runs}
    assert (runs["running"].step, runs["running"].steps) == (3, 8)
    assert runs["failed"].why == "the file vanished"
    assert "config.yaml" in runs["damaged"].why
    assert "is being worked on: 1 running, 1 failed, 1 damaged, 1 stopped, 1 waiting, 1 finished" in found.sentence()
    assert not read_progress(sweep).working
    assert "run its command again" in read_progress(sweep).sentence()


def test_time_since_the_last_progress(sweep):
    now = last_beat(sweep / "running") + 90
    (run,) = [run for run in read_progress(sweep, now=now).runs if run.run == "running"]
    assert run.quiet == pytest.approx(90)


def test_a_heartbeat_is_rare_and_tells_the_time(tmp_path):
    heart = Heartbeat(tmp_path, every=3600)
    heart.beat()
    first = last_beat(tmp_path)
    assert first == pytest.approx(time.time(), abs=60)
    (tmp_path / ".heartbeat").unlink()
    heart.beat()  # not yet
    assert last_beat(tmp_path) is None


def test_looking_at_a_lock_makes_none(tmp_path):
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_the_command_says_it(sweep, capsys):
    (sweep / "done" / "summary.json").unlink()
    assert command(["report", str(sweep), "--json"]) == 0
    (progress,) = json.loads(capsys.readouterr().out)["progress"]
    assert {run["state"] for run in progress["runs"]} == {"stopped", "waiting", "failed", "damaged"}
    assert command(["report", str(sweep)]) == 0
    assert "the file vanished" in capsys.readouterr().out
