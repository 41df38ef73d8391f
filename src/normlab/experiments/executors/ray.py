"""Cells on a Ray cluster. The nodes share the folder of the sweep; Ray places cells, restarts dead workers' tasks.

The one module that imports ray. What is sent is a folder's name, as to local workers, so the results are the same.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normlab.errors import ConfigError, InputError, require
from normlab.experiments.executors.protocol import Answer, Outcome

TIMEOUT = 5.0  # seconds for an address to answer at all


def remote_attempt(folder: str, threads: int, device: str = "cpu") -> Answer:
    """What runs on a node."""
    from normlab.experiments.executors.worker import attempt

    if not Path(folder).exists():
        error = (
            f"the node {socket.gethostname()!r} does not see {folder!r}: sweeps on Ray need a folder that all nodes "
            "share, such as a network file system"
        )
        return Answer(error)
    return attempt(folder, threads=threads, device=device)


@dataclass
class RayExecutor:
    """`address`: auto, host:port or ray://host:port of a running cluster; None starts one on this machine."""

    address: str | None = None
    workers: int = 0  # cells at a time; 0: as many as the cluster has room for
    threads: int = 1
    retries: int = 2
    device: str = "cpu"
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
        waiting = deque((Path(folder), 0) for folder in folders)
        running: dict[object, tuple[Path, int]] = {}
        while waiting or running:
            while waiting and len(running) < self.workers:
                folder, tries = waiting.popleft()
                running[task.remote(str(folder.resolve()), self.threads, self.device)] = (folder, tries)
            done, _ = ray.wait(list(running), num_returns=1, timeout=5.0)
            for reference in done:
                folder, tries = running.pop(reference)
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayError as error:  # its worker died more often than Ray retries
                    answer = Answer(f"{type(error).__name__}: {str(error).splitlines()[0]}")
                if answer.error is None:
                    yield Outcome(folder)
                elif answer.final or tries >= self.retries:
                    yield Outcome(folder, answer.error)
                else:
                    waiting.append((folder, tries + 1))

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
