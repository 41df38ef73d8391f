"""The folder of a run: config.yaml says what it is, .lock who works in it, log.jsonl how far it is, summary.json the end."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from normlab.errors import InputError
from normlab.tasks import Task, from_dict

try:
    import fcntl
except ImportError:  # not on Windows; runs there are not guarded against a second process
    fcntl = None  # type: ignore[assignment]

POLL = 0.1  # seconds
TAIL = 4096  # bytes; a line of the log that says its step early is short, or ends with short ones after it
AnyTask = Annotated[SerializeAsAny[Task], BeforeValidator(lambda v: from_dict(v) if isinstance(v, dict) else v)]


@contextmanager
def locked(folder: Path, *, wait: float = math.inf) -> Iterator[None]:
    """Hold the right to write here, after `wait` seconds at most. The system frees it when a process dies, however."""
    until = time.monotonic() + wait
    with open(folder / ".lock", "w") as file:
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise InputError(
                        f"another process is working in {str(folder)!r}; wait for it to end, or give another --out"
                    ) from None
                time.sleep(POLL)
        yield


def setting_of(config: Any) -> str:
    """What the cells that are compared with each other share: all but the scheme, the learning rate and the seed."""
    values = config.to_dict()
    values["model"].pop("scheme")
    values["train"].pop("lr")
    values["train"].pop("seed")
    return json.dumps(values, sort_keys=True)


def summary(folder: str | Path) -> dict[str, Any] | None:
    """What a finished run found, or None."""
    path = Path(folder) / "summary.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}); delete that file to run the cell again") from None


def check_data(sweep: Path, task: Task) -> None:
    """Refuse files that are not what they were when the sweep in this folder began. Older sweeps do not say."""
    try:
        began: dict[str, str] = json.loads((sweep / "sweep.json").read_text(encoding="utf-8")).get("data", {})
    except (FileNotFoundError, json.JSONDecodeError):  # not a sweep, or a damaged one, which `read_sweep` reports
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


def differences(there: dict[str, Any], here: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, value there, value here) of every leaf that differs."""
    for key in dict.fromkeys((*there, *here)):
        a, b, name = there.get(key), here.get(key), f"{path}{key}"
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{name}.")
        elif a != b:
            yield name, a, b
