"""The log of a run, and what made it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

import torch
from pydantic import Field

from normlab.config import Config
from normlab.files import LIMITS, MEGABYTE, naming, read_bytes
from normlab.report.terminal import finite
from normlab.schemes import depth_kernels
from normlab.store import damaged, inside, open_inside

REMEDY = "restore it, or delete the folder of the run to train it again"


class LogMark(Config):
    """How long a log was when a checkpoint was saved, and what it held."""

    size: int = Field(ge=0)
    sha256: str | None = None  # earlier versions did not say


class Log:
    """log.jsonl: one record a line, flushed as it is written; cut back only when a killed run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._size, self._hash = 0, hashlib.sha256()

    def check(self, mark: LogMark) -> None:
        """Raise if the log lacks records that the checkpoint knows, or holds others in their place."""
        path = inside(self.path.parent, self.path.name)
        if path.is_dir():
            raise damaged(self.path, "a folder stands in its place", REMEDY)
        size = path.stat().st_size if path.exists() else 0
        if size < mark.size:
            raise damaged(self.path, f"it has {size} bytes, and had {mark.size} at this checkpoint", REMEDY)
        if mark.sha256 is not None and self._digest(mark.size).hexdigest() != mark.sha256:
            raise damaged(self.path, "its records are not those that were there at this checkpoint", REMEDY)

    def cut(self, size: int) -> None:
        """Forget what lies behind `size` bytes: steps that the checkpoint does not know will be made again."""
        if inside(self.path.parent, self.path.name).exists():
            handle = open_inside(self.path.parent, self.path.name, os.O_RDWR)
            try:
                if os.fstat(handle).st_size > size:
                    os.ftruncate(handle, size)
            finally:
                os.close(handle)
        self._size, self._hash = size, self._digest(size)

    def open(self) -> None:
        handle = open_inside(self.path.parent, self.path.name, os.O_WRONLY | os.O_APPEND)
        self._file = os.fdopen(handle, "ab")

    def write(self, record: dict[str, object]) -> None:
        assert self._file is not None
        line = (json.dumps(finite(record), allow_nan=False) + "\n").encode()
        with naming(self.path):
            self._file.write(line)
            self._file.flush()
        self._size += len(line)
        self._hash.update(line)

    def sync(self) -> LogMark:
        """Bring the log to the disk and say where it stands."""
        assert self._file is not None
        with naming(self.path):
            os.fsync(self._file.fileno())
        return LogMark(size=self._size, sha256=self._hash.hexdigest())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _digest(self, size: int) -> hashlib._Hash:
        found = hashlib.sha256()
        if size:
            with open(self.path, "rb") as file:
                while size > 0 and (block := file.read(min(size, MEGABYTE))):
                    found.update(block)
                    size -= len(block)
        return found


def read_log(path: str | Path, kind: str | None = None) -> list[dict[str, object]]:
    """The records of a log; a last line that a kill left unfinished is passed over."""
    records = []
    lines = read_bytes(path, what="the log", most=LIMITS.record_bytes).split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # also the nothing behind the last newline
                break
            raise damaged(path, f"line {number} is not a record ({error})", REMEDY) from None
        if not isinstance(record, dict):
            raise damaged(path, f"line {number} is not a record", REMEDY)
        if kind is None or record.get("kind") == kind:
            records.append(record)
    return records


class Conditions(Config):
    """What the last bits of a run depend on besides its configuration: two runs agree bit for bit where these do."""

    what: ClassVar[str] = "record of conditions"

    torch_version: str
    device: str
    threads: int
    processor: str
    instructions: str  # that torch's own operations use: DEFAULT, AVX2, AVX512
    kernels: Literal["on", "off"]

    @classmethod
    def here(cls, device: torch.device) -> Conditions:
        return cls(
            torch_version=torch.__version__,
            device=str(device),
            threads=torch.get_num_threads(),
            processor=_processor(),
            instructions=torch.backends.cpu.get_cpu_capability(),
            kernels="on" if device.type == "cpu" and depth_kernels.available() else "off",
        )

    def changes(self, now: Conditions) -> list[str]:
        """What is different now, in words."""
        before, after = self.to_dict(), now.to_dict()
        return [f"{key} {before[key]} before, {after[key]} now" for key in before if before[key] != after[key]]


def provenance(device: torch.device, seed: int) -> dict[str, object]:
    """Versions, commit, seed, threads and device."""
    import normlab

    return {
        "seed": seed,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "versions": {"normlab": normlab.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
        "conditions": Conditions.here(device).to_dict(),
    }


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
