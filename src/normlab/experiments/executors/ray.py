"""Cells on a Ray cluster. The nodes share the folder of the sweep; Ray places cells, restarts dead workers' tasks.

The one module that imports ray. What is sent is a folder's name, as to local workers, so the results are the same.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normlab.errors import ConfigError, InputError, require
from normlab.experiments.executors.protocol import Answer, Outcome
from normlab.files import LIMITS
from normlab.store import Heartbeat, last_beat

TIMEOUT = 5.0  # seconds for an address to answer at all
GRACE = 20.0  # seconds for a worker that hangs to be gone
CLOCKS = 2.0  # seconds by which the file system's clock may be behind ours


def remote_attempt(folder: str, threads: int, device: str = "cpu") -> Answer:
    """What runs on a node."""
    from normlab.experiments.executors.worker import attempt

    if not Path(folder).exists():
        error = (
            f"the node {socket.gethostname()!r} does not see {folder!r}: sweeps on Ray need a folder that all nodes "
            "share, such as a network file system"
        )
        return Answer(error)
    Heartbeat(Path(folder)).beat()  # from now on silence counts: until here the run may have waited for room
    return attempt(folder, threads=threads, device=device)


@dataclass
class _Cell:
    folder: Path
    attempts: int = 0
    given: float = 0.0  # when, in seconds since 1970

    def hangs(self, silence: float) -> bool:
        """It has begun since it was given, and has been silent for so long."""
        beat = last_beat(self.folder)
        return beat is not None and beat >= self.given - CLOCKS and time.time() - max(beat, self.given) > silence


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
    name: str = "ray"
    _ray: Any = field(default=None, repr=False)

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
                runtime_env={"env_vars": environment},
            )
        except Exception as error:  # ray raises ConnectionError, RuntimeError and its own kinds for the same thing
            raise InputError(
                f"no Ray cluster answers at {self.address!r} ({str(error).splitlines()[0]}); start one with `ray start "
                "--head`, give its host:port, and set RAY_AUTH_MODE and RAY_AUTH_TOKEN as it has them"
            ) from None

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]:
        ray = self._ray
        task = ray.remote(remote_attempt).options(
            num_cpus=self.threads, num_gpus=1 if self.device.startswith("cuda") else 0, max_retries=self.retries
        )
        waiting = deque(_Cell(Path(folder)) for folder in folders)
        running: dict[object, _Cell] = {}
        while waiting or running:
            while waiting and len(running) < self.workers:
                cell = waiting.popleft()
                cell.given = time.time()
                running[task.remote(str(cell.folder.resolve()), self.threads, self.device)] = cell
            done, _ = ray.wait(list(running), num_returns=1, timeout=min(5.0, self.silence))
            ended = [(running.pop(reference), self._answer(reference)) for reference in done]
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

    def _answer(self, reference: object) -> Answer:
        try:
            answer: Answer = self._ray.get(reference)
            return answer
        except self._ray.exceptions.RayError as error:  # its worker died more often than Ray retries
            return Answer(f"{type(error).__name__}: {str(error).splitlines()[0]}")

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
