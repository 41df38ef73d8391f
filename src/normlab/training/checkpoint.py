"""Checkpoints that survive a kill: written aside, synced, renamed; the last two kept; each with a checksum.

    checkpoint/step-000000400/tensors.safetensors
    checkpoint/step-000000400/state.json          plain values, and the SHA-256 of the tensors

No pickle anywhere. A checkpoint that is damaged, or that does not belong to its run, is skipped with a warning in favour
of the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from normlab.errors import DamagedError, InputError
from normlab.files import naming, sync
from normlab.store import Schema, check_seal, damaged, inside, parse, read_object, seal

KEPT = 2
REMEDY = "delete that folder to go on from the checkpoint before"
_STEP = re.compile(r"step-(\d{9,})")


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, object]
    path: Path

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`, without that prefix."""
        return {key[len(name) + 1 :]: t for key, t in self.tensors.items() if key.startswith(f"{name}/")}

    def state_as(self, schema: type[Schema]) -> Schema:
        """The plain values as the type that was saved."""
        return parse(schema, self.state, path=self.path / "state.json", remedy=REMEDY)

    def check(self, group: str, expected: Mapping[str, Tensor]) -> None:
        """Raise if the group lacks one of these tensors, or has it in another shape."""
        there = self.group(group)
        for name, tensor in expected.items():
            if name not in there:
                raise self._foreign(f"it has no {group} tensor {name!r}")
            if there[name].shape != tensor.shape:
                was, now = list(there[name].shape), list(tensor.shape)
                raise self._foreign(f"its {group} tensor {name!r} has the shape {was}, and this run's has {now}")

    def _foreign(self, why: str) -> DamagedError:
        return damaged(self.path, f"{why}: it is of another run", REMEDY)


def save(
    folder: str | Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, object]
) -> Path:
    """Write groups of tensors and plain values; returns the folder of this checkpoint."""
    folder = inside(Path(folder).parent, Path(folder).name)
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    target = inside(folder, f"step-{step:09d}")
    aside, replaced = inside(folder, f".step-{step:09d}.tmp"), inside(folder, f".step-{step:09d}.old")
    with naming(target):
        aside.mkdir()
        tensors = {
            f"{group}/{key}": t.detach().cpu().contiguous() for group, row in groups.items() for key, t in row.items()
        }
        raw = safetensors.torch.save(tensors)
        _write(aside / "tensors.safetensors", raw)
        body = seal({"step": step, "sha256": hashlib.sha256(raw).hexdigest(), "state": dict(state)})
        _write(aside / "state.json", json.dumps(body, indent=1).encode())
        sync(aside)
        # The same step again, where a run pauses or goes on: it may be the only one, so that it stays until the new one has
        # its name. A kill between the two leaves the old one, which is found under its other name.
        if target.exists():
            target.rename(replaced)
        aside.rename(target)
        sync(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    # One of a later step is not of this run: it stays, and evicts none that is.
    for old in [path for at, path in _present(folder) if at <= step][:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: str | Path, *, accept: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
    """The newest intact checkpoint that `accept` does not raise a DamagedError for; None where there is none at all."""
    folder = inside(Path(folder).parent, Path(folder).name)
    present = _present(folder)
    for _, path in reversed(present):
        try:
            found = _load(path)
            if accept is not None:
                accept(found)
        except (InputError, OSError) as error:
            warnings.warn(f"the checkpoint {path.name} is damaged ({error}); trying the one before", stacklevel=2)
        else:
            return found
    if present:
        raise DamagedError(
            f"no checkpoint in {str(folder)!r} is intact; delete that folder to start the run from its beginning"
        )
    return None


def _load(path: Path) -> Checkpoint:
    place = inside(path, "state.json")
    body = read_object(place, remedy=REMEDY, keys={"checksum": str, "step": int, "sha256": str, "state": dict})
    check_seal(body, place, remedy=REMEDY)
    if body["step"] != _step(path):
        raise damaged(place, f"it is of step {body['step']}", REMEDY)
    place = inside(path, "tensors.safetensors")
    raw = place.read_bytes()
    if hashlib.sha256(raw).hexdigest() != body["sha256"]:
        raise damaged(place, "its checksum does not match", REMEDY)
    try:
        return Checkpoint(body["step"], safetensors.torch.load(raw), body["state"], path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise damaged(place, str(error), REMEDY) from None


def _present(folder: Path) -> list[tuple[int, Path]]:
    """Oldest first. Other names, and files of such a name, are not ours."""
    found: dict[int, Path] = {}
    for path in (
        *folder.glob("step-*"),
        *folder.glob(".step-*.old"),
    ):  # one that is being replaced counts if it is alone
        step = _step(path)
        if step is not None and path.is_dir() and not path.is_symlink():
            found.setdefault(step, path)
    return sorted(found.items())


def _step(path: Path) -> int | None:
    """Of the step that this name says; None where it says none."""
    name = path.name.removesuffix(".old").removeprefix(".")
    number = _STEP.fullmatch(name)
    return int(number[1]) if number and name == f"step-{int(number[1]):09d}" else None


def _tidy(folder: Path) -> None:
    """Put right what a kill left of an earlier writing."""
    for stale in folder.glob(".step-*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    for left in folder.glob(".step-*.old"):
        target = folder / left.name.removeprefix(".").removesuffix(".old")
        if target.exists():
            shutil.rmtree(left, ignore_errors=True)
        elif _step(left) is not None and not left.is_symlink():
            left.rename(target)


def _write(path: Path, raw: bytes) -> None:
    with naming(path), open(path, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
