"""Faults that need processes of their own: workers and drivers of a sweep, ranks of torchrun, workers of Ray.

Nothing here is forked from a warm process, so a trial takes seconds. A blow falls when the logs of the runs have grown to a
size that is drawn at random: early, late, between two steps or in the middle of a checkpoint.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tools.faults.campaign import Blow
from tools.faults.harness import REFUSED, Ended, forked, start, wait
from tools.faults.jobs import config, found

from normlab.errors import InputError, install_command
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.executors.protocol import Executor
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.trainer import run_folder

CELLS, STEPS = 3, 120
SILENCE = 20.0  # seconds until a worker is taken to hang; a busy machine needs some to start one
PATIENCE = 600.0


@dataclass
class Yard:
    """A place for the trials: what the runs give undisturbed, and a Ray cluster that is started when it is needed."""

    home: Path
    _expected: dict[str, object] = field(default_factory=dict)
    _cluster: Cluster | None = None

    def runs(self, name: str) -> Path:
        folder = self.home / name
        shutil.rmtree(folder, ignore_errors=True)
        for seed in range(CELLS):
            prepare(folder / f"seed-{seed}", config(steps=STEPS, seed=seed))
        return folder

    @property
    def expected(self) -> dict[str, object]:
        if not self._expected:
            folder = self.runs("undisturbed")
            for run in runs_in(folder):
                forked(partial(run_folder, run), self.home / "said")
            self._expected = found(folder)
            assert len(self._expected) == CELLS
        return self._expected

    @property
    def most(self) -> int:
        """Bytes in the logs at the end."""
        return written(self.home / "undisturbed") if self.expected else 0

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster.start(self.home)
        return self._cluster

    def judge(self, ended: Ended, folder: Path) -> str | None:
        if ended.code != 0:
            return f"ended with {ended.code}: {ended.said.strip()[-400:]}"
        return None if found(folder) == self.expected else "other numbers than the undisturbed runs"

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *error: object) -> None:
        if self._cluster is not None:
            self._cluster.stop()


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.yaml"))


def of_runs(folder: Path, name: str) -> list[Path]:
    """A file of the run, or of each run of a sweep. Not further down: checkpoints come and go under one's eyes."""
    return [path for path in (folder / name, *folder.glob(f"*/{name}")) if path.exists()]


def written(folder: Path) -> int:
    """Bytes in the logs so far."""
    return sum(path.stat().st_size for path in of_runs(folder, "log.jsonl"))


def carry_out(folder: Path, executor: Callable[[], Executor]) -> None:
    """What a driver does. Runs that failed are one sentence."""
    with executor() as cells:
        failed = [outcome for outcome in cells.run(runs_in(folder)) if outcome.error]
    if failed:
        raise InputError("; ".join(f"{outcome.folder.name}: {outcome.error}" for outcome in failed))


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def holders(folder: Path) -> list[int]:
    """The processes that hold the locks of these runs, from the kernel's table."""
    inodes = {str(path.stat().st_ino) for path in of_runs(folder, ".lock")}
    rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [int(r[4]) for r in rows if r[1] == "FLOCK" and r[5].rpartition(":")[2] in inodes and int(r[4]) > 0]


def await_moment(folder: Path, size: float, pid: int) -> None:
    """Until the logs have reached this size while a run is worked on, or the driver is gone."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and _lives(pid):
        if written(folder) >= size and holders(folder):
            return
        time.sleep(0.002)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pids: Iterable[int], number: int) -> int:
    """How many were still there."""
    hit = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            hit += 1
        except ProcessLookupError:
            continue
    return hit


Executors = Callable[[Yard], Callable[[], Executor]]


def local(yard: Yard) -> Callable[[], Executor]:
    return partial(LocalExecutor, workers=2, silence=SILENCE)


def on_ray(yard: Yard) -> Callable[[], Executor]:
    from normlab.experiments.executors.ray import RayExecutor

    return partial(RayExecutor, address=yard.cluster.address, workers=2, silence=SILENCE)


def strike_workers(yard: Yard, chance: random.Random, *, executors: Executors, number: int) -> Blow:
    """One or two workers, chosen among those that hold the lock of a run; the driver must bring everything to its end.

    A worker that is stopped for good may take its run with it (Ray cannot end it): that is said, and the same command makes
    the run once the worker is gone.
    """
    executor, log, most = executors(yard), yard.home / "said", yard.most
    folder, victims = yard.runs("runs"), []
    pid = start(partial(carry_out, folder, executor), log)
    for _ in range(chance.randint(1, 2) if number == signal.SIGKILL else 1):
        await_moment(folder, chance.random() * most, pid)
        if held := holders(folder):
            victims.append(chance.choice(held))
            send(victims[-1:], number)
    ended = wait(pid, log)
    if number == signal.SIGSTOP:
        send(victims, signal.SIGKILL)
        if ended.code == REFUSED and "it made no progress" in ended.said:
            ended = forked(partial(carry_out, folder, executor), log)
    return Blow(len(victims), yard.judge(ended, folder))


def strike_driver(
    yard: Yard, chance: random.Random, *, executors: Executors, number: int, all_of_it: bool = False
) -> Blow:
    """The driver alone, or with all of its workers (the power fails); the same command again must end as if nothing was."""
    executor, log, most = executors(yard), yard.home / "said", yard.most
    folder = yard.runs("runs")
    pid = start(partial(carry_out, folder, executor), log)
    await_moment(folder, chance.random() * most, pid)
    workers = holders(folder) if all_of_it else []
    hit = send([pid, *workers], number)
    ended = wait(pid, log)
    if not ended.orderly:
        return Blow(hit, f"a traceback: {ended.said.strip()[-400:]}")
    done = {path: path.stat().st_mtime_ns for path in of_runs(folder, "summary.json")}
    fault = yard.judge(forked(partial(carry_out, folder, executor), log), folder)
    if fault is None and any(path.stat().st_mtime_ns != stamp for path, stamp in done.items()):
        fault = "a finished run was made again"
    return Blow(hit, fault)


def rank_dies(yard: Yard, chance: random.Random) -> Blow:
    """One of two ranks of torchrun is killed; the same command goes on to the numbers that two ranks have undisturbed."""
    whole = yard.home / "torchrun"
    if not whole.exists():
        done = _torchrun(yard.home, whole).wait(PATIENCE)
        assert done == 0, (yard.home / "torchrun.log").read_text()[-2000:]
    folder = yard.home / "ranks"
    shutil.rmtree(folder, ignore_errors=True)
    launcher = _torchrun(yard.home, folder)
    await_moment(folder, chance.random() * written(whole), launcher.pid)
    ranks = children(launcher.pid)
    hit = send([chance.choice(ranks)], signal.SIGKILL) if ranks else 0
    launcher.wait(PATIENCE)
    if _torchrun(yard.home, folder).wait(PATIENCE) != 0:
        return Blow(hit, (yard.home / "torchrun.log").read_text()[-600:])
    return Blow(hit, None if found(folder) == found(whole) else "other numbers than two ranks undisturbed")


def _torchrun(home: Path, folder: Path) -> subprocess.Popen[bytes]:
    path = home / "ranks.yaml"
    if not path.exists():
        settings = config(steps=STEPS, seed=0)
        train = settings.train.model_copy(update={"batch": 4})
        path.write_text(settings.model_copy(update={"train": train}).to_yaml())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "normlab"]
    words = ["train", str(path), "--out", str(folder), "--strategy", "ddp", "--device", "cpu", "--json"]
    with open(home / "torchrun.log", "wb") as log:
        return subprocess.Popen([sys.executable, *launcher, *words], env=_environment(), stdout=log, stderr=log)


def _environment() -> dict[str, str]:
    sources = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}


@dataclass
class Cluster:
    """A Ray cluster of one node on the loopback interface, in a process group of its own."""

    address: str
    process: subprocess.Popen[bytes]
    place: Path

    @classmethod
    def start(cls, home: Path) -> Cluster:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        secrets = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(), "RAY_USAGE_STATS_ENABLED": "0"}
        os.environ.update(secrets)  # for the drivers, which are forks
        place = Path(f"/tmp/r{port}")  # Ray's sockets need a short name
        words = ["start", "--head", f"--port={port}", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
        words += [f"--temp-dir={place}", "--block", "--num-cpus=2", "--object-store-memory=100000000"]
        with open(home / "ray.log", "wb") as log:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "ray"), *words, "--disable-usage-stats"],
                env=_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return cls(f"127.0.0.1:{port}", process, place)
            except OSError:
                time.sleep(0.2)
        raise InputError(f"no Ray cluster came up; see {home / 'ray.log'}")

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


Strikes = Callable[[Yard, random.Random], Blow]


def faults() -> dict[str, tuple[Strikes, float]]:
    """Each with how many blows it gets for one kill that is asked for in all."""
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    rows: dict[str, tuple[Strikes, float]] = {
        "local workers: kill -9": (partial(strike_workers, executors=local, number=kill), 0.04),
        "local driver: kill -9": (partial(strike_driver, executors=local, number=kill), 0.03),
        "local driver and workers: kill -9": (
            partial(strike_driver, executors=local, number=kill, all_of_it=True),
            0.03,
        ),
        "local driver: Ctrl-C": (partial(strike_driver, executors=local, number=signal.SIGINT), 0.01),
        "local workers: hang": (partial(strike_workers, executors=local, number=stop), 0.01),
        "torchrun: a rank is killed": (rank_dies, 0.01),
    }
    if find_spec("ray") is None:
        print(f"Ray is not installed: its faults are left out; {install_command('ray')}", file=sys.stderr)
        return rows
    return rows | {
        "Ray workers: kill -9": (partial(strike_workers, executors=on_ray, number=kill), 0.015),
        "Ray driver: kill -9": (partial(strike_driver, executors=on_ray, number=kill), 0.015),
        "Ray workers: hang": (partial(strike_workers, executors=on_ray, number=stop), 0.005),
    }
