"""What a sweep asks of an executor, and what comes back."""

from __future__ import annotations

import json
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
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
