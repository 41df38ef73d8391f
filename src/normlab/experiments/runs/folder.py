"""The folder of a run: config.yaml says what it is, .lock who works in it, log.jsonl how far it is, summary.json the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import normlab
from normlab.config import load_yaml
from normlab.errors import ConfigError, InputError
from normlab.experiments.runs.config import RunConfig, upgraded
from normlab.files import LIMITS, read_text, write_text
from normlab.store import check_seal, inside, locked, read_object
from normlab.tasks import Task

TAIL = 4096  # bytes; a line of the log that says its step early is short, or ends with short ones after it
PATIENCE = 45.0  # seconds: a worker outlives a killed parent until it has saved (at most ORPHAN_SECONDS)
STACK = "stacked.json"  # in the folder of a stack: the names of its members


def read_summary(folder: str | Path) -> dict[str, object] | None:
    """What a finished run found, or None."""
    path = inside(folder, "summary.json")
    if not path.exists():
        return None
    remedy = "delete that file to run it again"
    found = read_object(path, remedy=remedy, keys={"status": str})
    check_seal(found, path, remedy=remedy)
    return found


def check_data(sweep: Path, task: Task) -> None:
    """Refuse files that are not what they were when the sweep in this folder began. Older sweeps do not say."""
    try:
        began = read_object(sweep / "sweep.json", remedy="").get("data", {})
    except InputError:  # not a sweep, or a damaged one, which `read_sweep` reports
        return
    if not isinstance(began, dict):
        return
    for path, digest in task.files().items() if began else ():
        if began.get(path, digest) != digest:
            raise InputError(
                f"the file {path!r} has changed since the sweep in {str(sweep)!r} began: its runs would be on different "
                "data; restore the file, or give another --out"
            )


def last_step(folder: Path) -> int:
    """How far the log says the run is; 0 where there is none. Reads the end of the file only: logs are watched."""
    try:
        with open(folder / "log.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            found = re.findall(rb'"step": (\d+)', file.read())
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def differences(
    there: dict[str, object], here: dict[str, object], path: str = ""
) -> Iterator[tuple[str, object, object]]:
    """(key, value there, value here) of every leaf that differs."""
    for key in dict.fromkeys((*there, *here)):
        a, b, name = there.get(key), here.get(key), f"{path}{key}"
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{name}.")
        elif a != b:
            yield name, a, b


def prepare(folder: str | Path, config: RunConfig) -> Path:
    """Make the folder of a run, or check that it holds this very run."""
    folder = Path(folder)
    path = inside(folder, "config.yaml")
    if not path.exists():
        write_text(path, config.to_yaml())
        return folder
    there = load(folder)
    if there != config:
        found = differences(there.to_dict(), config.to_dict())
        changed = [f"{key} is {was!r} there and {now!r} here" for key, was, now in found]
        raise ConfigError(
            f"{str(folder)!r} holds another run: {'; '.join(changed[:3])}. Give another --out, or delete that folder"
        )
    return folder


def load(folder: str | Path) -> RunConfig:
    path = inside(folder, "config.yaml")
    if not path.exists():
        raise InputError(f"{str(folder)!r} is not the folder of a run: it has no config.yaml")
    try:
        return RunConfig.from_file(path)
    except ConfigError as error:
        raise InputError(
            f"{str(path)!r} is not a run that normlab {normlab.__version__} can read ({error}); if another version wrote it, "
            "use that one, or give another --out"
        ) from None


def is_run(folder: str | Path) -> bool:
    """Does `config.yaml` there describe a run of normlab's, of any format? Without a sentence where it does not."""
    path = Path(folder) / "config.yaml"
    try:
        values = load_yaml(read_text(path, what="the file", most=LIMITS.yaml_bytes), source=str(path))
    except (InputError, ConfigError):
        return False
    return isinstance(values, dict) and {"model", "train", "score"} <= set(upgraded(values))


def is_stack(folder: str | Path) -> bool:
    return (Path(folder) / STACK).exists()


__all__ = [
    "PATIENCE", "STACK", "check_data", "differences", "is_run", "is_stack", "last_step", "load", "locked", "prepare",
    "read_summary",
]  # fmt: skip
