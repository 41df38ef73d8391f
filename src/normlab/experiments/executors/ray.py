"""Cells on a Ray cluster. The nodes share the folder of the sweep; Ray places cells, restarts dead workers' tasks.

The one module that imports ray. What is sent is a folder's name, as to local workers, so the results are the same; and the
modules that `--import` named, so that the nodes need not have them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normlab.errors import ConfigError, InputError, require
from normlab.experiments.executors.protocol import Answer, Outcome
from normlab.experiments.runs.stack import is_finished
from normlab.files import LIMITS
from normlab.plugins import Imported
from normlab.store import Heartbeat, last_beat

TIMEOUT = 5.0  # seconds for an address to answer at all
GRACE = 20.0  # seconds for a worker that hangs to be gone
CLOCKS = 2.0  # seconds by which the file system's clock may be behind ours
BUSY = 60.0  # seconds within which a worker has started, if there is room for it
LATE = 10.0  # seconds after which a network file system shows what another node has written


def remote_attempt(folder: str, threads: int, device: str, imports: Sequence[str]) -> Answer:
    """What runs on a node."""
    from normlab.experiments.executors.worker import attempt

    if not Path(folder).exists():
        error = (
            f"the node {socket.gethostname()!r} does not see {folder!r}: sweeps on Ray need a folder that all nodes "
            "share, such as a network file system"
        )
        return Answer(error)
    Heartbeat(Path(folder)).beat()  # from now on silence counts: until here the run may have waited for room
    return attempt(folder, threads=threads, device=device, imports=imports)


@dataclass
class _Cell:
    folder: Path
    attempts: int = 0
    given: float = 0.0  # when, in seconds since 1970

    def begun(self) -> float | None:
        """When it last showed progress since it was given; None where it still waits for room."""
        beat = last_beat(self.folder)
        return None if beat is None or beat < self.given - CLOCKS else max(beat, self.given)

    def hangs(self, silence: float) -> bool:
        """It has begun since it was given, and has been silent for so long."""
        beat = self.begun()
        return beat is not None and time.time() - beat > silence


@dataclass
class RayExecutor:
    """`address`: auto or host:port of a running cluster; None starts one on this machine.

    A run that has begun and leaves no sign of progress for `silence` seconds is taken to hang: its worker is ended, and the
    run retried. One that still waits for room in the cluster does not hang.
    """

    address: str | None = None
    workers: int = 0  # cells at a time; 0: as many as the cluster has room for
    threads: int = 1
    retries: int = 2
    device: str = "cpu"
    silence: float = LIMITS.silent_seconds
    imports: Sequence[Imported] = ()
    name: str = "ray"
    _ray: Any = field(default=None, repr=False)
    _waits: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.threads < 1 or self.workers < 0:
            raise ConfigError(f"threads >= 1 and workers >= 0 are needed, but got {self.threads} and {self.workers}")
        self._connect()
        if not self.workers:
            self.workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)) // self.threads)

    @property
    def at_once(self) -> int:
        return max(1, self.workers)

    def _connect(self) -> None:
        if self.address is None and "RAY_ADDRESS" not in os.environ:
            # A cluster of our own is for this machine: with this switch of Ray's it listens on the loopback interface.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        self._ray = require("ray", extra="ray", purpose="--executor ray")
        if self.address not in (None, "auto", "local"):
            _answers(str(self.address))
        environment = {
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        try:
            alone = {"include_dashboard": False} if self.address is None else {}
            self._ray.init(
                address=self.address,
                **alone,
                ignore_reinit_error=True,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": environment, **self._shipped()},
            )
        except self._ray.exceptions.RuntimeEnvSetupError as error:
            raise InputError(f"the modules of --import could not be sent to the Ray cluster: {_cause(error)}") from None
        except Exception as error:  # ray raises ConnectionError, RuntimeError and its own kinds for the same thing
            raise InputError(
                f"no Ray cluster answers at {self.address!r} ({str(error).splitlines()[0]}); start one with `ray start "
                "--head`, give its host:port, and set RAY_AUTH_MODE and RAY_AUTH_TOKEN as it has them"
            ) from None

    def _shipped(self) -> dict[str, list[str]]:
        """The files and folders of the modules that workers import: nodes get copies."""
        paths = {imported.path for imported in self.imports if imported.path is not None}
        found = sorted(str(path) for path in paths if path.is_dir() or path.suffix == ".py")
        return {"py_modules": found} if found else {}

    @property
    def _needs(self) -> dict[str, int]:
        return {"CPU": self.threads, **({"GPU": 1} if self.device.startswith("cuda") else {})}

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]:
        ray, needs = self._ray, self._needs
        task = ray.remote(remote_attempt).options(
            num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), max_retries=self.retries
        )
        modules = [imported.module for imported in self.imports]
        waiting = deque(_Cell(Path(folder)) for folder in folders)
        running: dict[object, _Cell] = {}
        while waiting or running:
            while waiting and len(running) < self.workers:
                cell = waiting.popleft()
                cell.given = time.time()
                running[task.remote(str(cell.folder.resolve()), self.threads, self.device, modules)] = cell
            done, _ = ray.wait(list(running), num_returns=1, timeout=min(5.0, self.silence))
            if not done:
                self._say_what_is_missing(running.values())
            ended = [(cell := running.pop(reference), self._answer(reference, cell.folder)) for reference in done]
            hung = [reference for reference, cell in running.items() if cell.hangs(self.silence)]
            ended += [(running.pop(reference), self._end(reference)) for reference in hung]
            for cell, answer in ended:
                cell.attempts += 1
                if answer.error is None:
                    yield Outcome(cell.folder)
                elif answer.final or cell.attempts > self.retries:
                    yield Outcome(cell.folder, answer.error)
                else:
                    waiting.append(cell)

    def _answer(self, reference: object, folder: Path) -> Answer:
        try:
            answer: Answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # its worker died more often than Ray retries
            return Answer(f"on the Ray cluster: {_cause(error)}")
        until = time.monotonic() + LATE
        while answer.error is None and not is_finished(folder):
            if time.monotonic() > until:
                return Answer(
                    f"its node says that it is finished, but {str(folder)!r} has no summary here: the node has a folder of "
                    "its own with that name; sweeps on Ray need a folder that all nodes share, such as a network file system"
                )
            time.sleep(0.2)
        return answer

    def _say_what_is_missing(self, cells: Collection[_Cell]) -> None:
        """Waiting for room is no fault, but nobody should wonder why nothing happens."""
        if any(cell.begun() is not None for cell in cells):
            return
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for kind, needed in self._needs.items():
            largest = max((node.get(kind, 0) for node in nodes), default=0)
            if largest < needed:
                where = " on its largest node" if largest else ""
                self._say(f"a run waits for {needed} {kind}, the cluster has {largest:g}{where}")
                return
        if time.time() - min(cell.given for cell in cells) > BUSY:
            self._say("all runs wait: the cluster has room for them, and others have taken it")

    def _say(self, waits: str) -> None:
        """Once, until it is another."""
        if waits != self._waits:
            print(waits, file=sys.stderr, flush=True)
        self._waits = waits

    def _end(self, reference: object) -> Answer:
        """End the worker of a run that hangs, and wait until it is gone: the next one needs the run's lock."""
        self._ray.cancel(reference, force=True)
        done, _ = self._ray.wait([reference], timeout=GRACE)
        said = f"it made no progress for {self.silence:.0f} s and was ended"
        return Answer(said, final=False) if done else Answer(f"{said}, but its worker did not go", final=False)

    def close(self) -> None:
        self._ray.shutdown()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _cause(error: BaseException) -> str:
    """The last line: above it Ray prints where the task ran, and a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _answers(address: str) -> None:
    """Ray itself waits for minutes on a wrong address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"a Ray address is auto or host:port, for example 10.0.0.1:6379; {address!r} is neither")
    try:
        socket.create_connection((host, int(port)), timeout=TIMEOUT).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address!r} ({error}); start one with `ray start --head`, or check the address"
        ) from None
