"""The log of a run, and what made it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import torch

from normlab.report.terminal import finite


class Log:
    """log.jsonl: one record a line, flushed as it is written; cut back only when a killed run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def cut(self, size: int) -> None:
        """Forget what lies behind `size` bytes: steps that the checkpoint does not know will be made again."""
        if self.path.exists() and self.path.stat().st_size > size:
            os.truncate(self.path, size)

    def open(self) -> None:
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def write(self, record: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(finite(record), allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Bring the log to the disk and return its size."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        return self.path.stat().st_size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_log(path: str | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a log; a last line that a kill left unfinished is passed over."""
    records = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if kind is None or record.get("kind") == kind:
            records.append(record)
    return records


def provenance(device: torch.device, seed: int) -> dict[str, Any]:
    """Versions, commit, seed, threads and device."""
    import normlab

    return {
        "seed": seed,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "versions": {"normlab": normlab.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
    }


@cache
def _commit() -> str | None:
    """The git commit of the source tree, where there is one."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
