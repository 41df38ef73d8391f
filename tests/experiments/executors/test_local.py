"""Local processes for real: the same losses as in this process, through kills of workers and of the driver."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from normlab.errors import InputError
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.executors.protocol import Outcome
from normlab.experiments.runs.folder import locked, prepare, read_summary
from normlab.experiments.sweep import Sweep, SweepError, read_runs
from tests.experiments.tiny import alone, tiny


def validation(folder):
    return read_summary(folder)["validation"]


def test_local_processes_give_the_same_losses(tmp_path):
    configs = {f"s{seed}": tiny(seed=seed) for seed in range(3)}
    here = {name: alone(prepare(tmp_path / "here" / name, c)).loss for name, c in configs.items()}
    with LocalExecutor(workers=2) as local:
        sweep = Sweep(tmp_path / "there", local, quiet=True)
        sweep.settle(CompareRequest())
        found = sweep.run(configs, what="test")
        pids = {worker.process.pid for worker in local._pool}
        sweep.run({"more": tiny(seed=9)}, what="test")
        assert {worker.process.pid for worker in local._pool} <= pids, "workers live through several sweeps"
    assert {c.name: c.loss for c in found} == here
    assert [c.name for c in read_runs(tmp_path / "there")] == ["more", "s0", "s1", "s2"]


def test_killed_worker_is_replaced_and_its_cell_goes_on(tmp_path):
    config = tiny(steps=150, train={"checkpoint_every": 5})
    whole = prepare(tmp_path / "whole", config)
    alone(whole)
    folder = prepare(tmp_path / "killed", config)
    with LocalExecutor(workers=1) as local:
        killer = threading.Thread(target=_kill_when_training, args=(local, folder), daemon=True)
        killer.start()
        assert list(local.run([folder])) == [Outcome(folder)]
        killer.join()
    assert validation(folder) == validation(whole)
    steps = [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines() if '"train"' in line]
    assert steps == list(range(1, 151))


def _kill_when_training(local, folder):
    until = time.monotonic() + 60
    while not any((folder / "checkpoint").glob("step-*")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(local._pool[0].process.pid, signal.SIGKILL)


def test_a_cell_that_always_kills_its_worker_fails_alone(tmp_path):
    good, bad = prepare(tmp_path / "good", tiny()), prepare(tmp_path / "bad", tiny())
    (bad / "checkpoint").write_text("a file where a folder should be")
    with LocalExecutor(workers=1, retries=1) as local:
        outcomes = {o.folder.name: o.error for o in local.run([bad, good])}
    assert outcomes["good"] is None
    assert "NotADirectoryError" in outcomes["bad"] or "FileExistsError" in outcomes["bad"]


def test_killed_driver_loses_nothing(tmp_path):
    """kill -9 of the driver: its workers save and leave; the same command goes on with what is there."""
    names = {f"s{seed}": tiny(seed=seed, steps=80, train={"checkpoint_every": 5}) for seed in range(3)}
    for name, config in names.items():
        prepare(tmp_path / name, config)
    script = (
        "import sys; from pathlib import Path; from normlab.experiments.executors.local import LocalExecutor\n"
        "root = Path(sys.argv[1])\n"
        "for o in LocalExecutor(workers=1).run(sorted(p.parent for p in root.glob('*/config.yaml'))): print(o)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env={**os.environ, "PYTHONPATH": _path()})
    until = time.monotonic() + 120
    while read_summary(tmp_path / "s0") is None or not any((tmp_path / "s1" / "checkpoint").glob("step-*")):
        assert time.monotonic() < until
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    first = (tmp_path / "s0" / "summary.json").stat().st_mtime_ns
    with LocalExecutor(workers=2) as local:
        sweep = Sweep(tmp_path, local, quiet=True)
        found = sweep.run(names, what="test")
    assert [c.summary.status for c in found] == ["finished"] * 3
    assert (tmp_path / "s0" / "summary.json").stat().st_mtime_ns == first
    whole = alone(prepare(tmp_path / "again" / "s1", names["s1"]))
    assert validation(tmp_path / "s1") == whole.loss


def _path():
    return os.pathsep.join(p for p in sys.path if p)


def test_vanished_data_is_a_sentence_and_the_rest_stays(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 200)
    from normlab.tasks import task

    gone = tiny().replace(model=tiny().model.replace(vocab_size=256), task=task("text", path=str(text)))
    text.unlink()
    with LocalExecutor(workers=1) as local:
        sweep = Sweep(tmp_path / "sweep", local, quiet=True)
        sweep.settle(CompareRequest())
        found = sweep.run({"gone": gone, "good": tiny()}, what="test")
        assert [c.name for c in found] == ["good"]
        with pytest.raises(
            SweepError, match=r"'gone' could not be made: cannot read the text file .*What is finished stays"
        ):
            sweep.check()
        assert "cannot read" in json.loads((tmp_path / "sweep" / "gone" / "failure.json").read_text())["error"]
        text.write_text("to be or not to be " * 200)
        assert len(sweep.run({"gone": gone, "good": tiny()}, what="test")) == 2
        sweep.check()
    assert not (tmp_path / "sweep" / "gone" / "failure.json").exists()


def test_two_drivers_in_one_folder(tmp_path):
    sweep = Sweep(tmp_path, LocalExecutor(workers=1), quiet=True)
    with locked(tmp_path), pytest.raises(InputError, match="another process is working in"):
        sweep.run({"a": tiny()}, what="test")
    with locked(tmp_path):
        assert sweep.run({}, what="test") == []  # nothing to do, nothing to hold


def test_a_file_that_vanishes_in_mid_sweep(tmp_path):
    """From the command line: the text goes and its reader dies; the same command later, with the text, ends the sweep."""
    text, out = tmp_path / "text.txt", tmp_path / "sweep"
    text.write_text("to be or not to be " * 500)
    command = [sys.executable, "-m", "normlab", "compare", "--data", str(text), "--out", str(out), "--json", "--workers", "1",
               "--schemes", "pre_norm", "--depth", "2", "--dim", "16", "--heads", "2", "--batch", "4", "--length", "8",
               "--tokens", "12800", "--lrs", "1e-3,3e-3", "--seeds", "1"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"}
    sweep = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not (finished := [*out.glob("*/summary.json")]):
        assert time.monotonic() < until
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.02)
    text.unlink()
    for worker in Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split():
        os.kill(int(worker), signal.SIGKILL)
    _, error = sweep.communicate(timeout=120)
    assert sweep.returncode == 2
    assert "cannot read the text file" in error
    assert "What is finished stays" in error
    assert "Traceback" not in error
    stamps = {path: path.stat().st_mtime_ns for path in finished}
    text.write_text("to be or not to be " * 500)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert len(json.loads(done.stdout)["cells"]) >= 3


def test_a_run_without_progress_is_ended_retried_and_recorded(tmp_path):
    """Somebody else holds its lock for good: the worker waits, and nothing happens."""
    folder = prepare(tmp_path / "stuck", tiny())
    with locked(folder), LocalExecutor(workers=1, retries=1, silence=1.0) as executor:
        (outcome,) = executor.run([folder])
    assert outcome.error == "it made no progress for 1 s and was ended"
    with LocalExecutor(workers=1) as executor:
        assert [outcome.error for outcome in executor.run([folder])] == [None]


def test_a_name_may_hold_a_newline(tmp_path):
    """What goes to a worker is one line; half of this name is another folder."""
    folder = prepare(tmp_path / "one\ntwo", tiny())
    other = prepare(tmp_path / "one", tiny(seed=1))
    with LocalExecutor(workers=1, retries=0) as executor:
        assert list(executor.run([folder])) == [Outcome(folder)]
    assert read_summary(folder) is not None
    assert read_summary(other) is None
