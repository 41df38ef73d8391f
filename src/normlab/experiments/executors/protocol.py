"""What a sweep asks of an executor, and what comes back."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import Self


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a folder ended: `error` is None where it is finished."""

    folder: Path
    error: str | None = None


@dataclass(frozen=True)
class Answer:
    """What a worker says of one attempt. `final`: trying again cannot help."""

    error: str | None = None
    final: bool = True

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        return cls(**json.loads(line))


class Executor(Protocol):
    """Brings the runs in these folders to their end and yields an outcome for each, in the order they end."""

    name: str
    device: str

    @property
    def at_once(self) -> int:
        """Runs that really go on at a time: more gain nothing."""
        ...

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def cores() -> int:
    """The cores that this process may use: those that it may run on, and no more than its container pays for."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(allowed, _quota()))


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores' worth of time that the control group of a container grants; infinite without a limit."""
    one, two = ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")  # version 2; version 1
    for names in (one, two):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # "max" is no number, and no limit
            quota, period = map(int, " ".join((root / name).read_text() for name in names).split())
            if quota > 0:
                return quota / period
    return math.inf
