"""Checkpoints that survive a kill: written aside, synced, renamed; the last two kept; each with a checksum.

    checkpoint/step-000000400/tensors.safetensors
    checkpoint/step-000000400/state.json          plain values, and the SHA-256 of the tensors

No pickle anywhere. A checkpoint whose checksum is wrong is skipped with a warning in favour of the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from normlab.errors import InputError

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`, without that prefix."""
        return {key[len(name) + 1 :]: t for key, t in self.tensors.items() if key.startswith(f"{name}/")}


def save(folder: str | Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Write groups of tensors and plain values; returns the folder of this checkpoint."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".step-*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    target = folder / f"step-{step:09d}"
    aside = folder / f".step-{step:09d}.tmp"
    aside.mkdir()
    tensors = {
        f"{group}/{key}": t.detach().cpu().contiguous() for group, row in groups.items() for key, t in row.items()
    }
    raw = safetensors.torch.save(tensors)
    _write(aside / "tensors.safetensors", raw)
    body = {"step": step, "sha256": hashlib.sha256(raw).hexdigest(), "state": dict(state)}
    body["checksum"] = _digest(body)
    _write(aside / "state.json", json.dumps(body, indent=1).encode())
    _sync(aside)
    if target.exists():  # the same step again, after a resume
        shutil.rmtree(target)
    aside.rename(target)
    _sync(folder)
    for old in _present(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: str | Path) -> Checkpoint | None:
    """The newest intact checkpoint, or None where there is none at all."""
    present = _present(Path(folder))
    for path in reversed(present):
        try:
            return _load(path)
        except (OSError, ValueError, KeyError) as error:
            warnings.warn(f"the checkpoint {path.name} is damaged ({error}); trying the one before", stacklevel=2)
    if present:
        raise InputError(
            f"no checkpoint in {str(folder)!r} is intact; delete that folder to start the run from its beginning"
        )
    return None


def _load(path: Path) -> Checkpoint:
    body = json.loads((path / "state.json").read_text())
    if body.pop("checksum") != _digest(body):
        raise InputError("the checksum of state.json does not match")
    raw = (path / "tensors.safetensors").read_bytes()
    if hashlib.sha256(raw).hexdigest() != body["sha256"]:
        raise InputError("the checksum of the tensors does not match")
    return Checkpoint(body["step"], safetensors.torch.load(raw), body["state"])


def _present(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _write(path: Path, raw: bytes) -> None:
    with open(path, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
