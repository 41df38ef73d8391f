"""Folders and records that we write ourselves: one way to open them, one way to read them back.

Nothing that normlab reads or writes in the folder of a run leads out of it: a link in it is refused. A record that is
not as it was written raises one kind of error (`DamagedError`), which names the file and says what to do.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import math
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from normlab.config import Config
from normlab.errors import ConfigError, DamagedError, InputError
from normlab.files import LIMITS, naming, read_bytes, sync

try:
    import fcntl
except ImportError:  # not on Windows; runs there are not guarded against a second process
    fcntl = None  # type: ignore[assignment]

POLL = 0.1  # seconds between two looks at a lock
GRACE = 0.3  # seconds that a lock is tried at least: somebody may only be looking at it
LOCK = ".lock"
HEARTBEAT = ".heartbeat"
INCOMING = ".incoming"
BEAT = 5.0  # seconds
Schema = TypeVar("Schema", bound=Config)


# -- folders -----------------------------------------------------------------------------------------------------------
def inside(folder: str | Path, *names: str) -> Path:
    """`folder/a/b`, refused where `a` or `b` is a link. The folder itself may be reached by one: that is its owner's."""
    path = Path(folder)
    for name in names:
        path = path / name
        try:
            link = stat.S_ISLNK(path.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            link = False
        except (OSError, ValueError) as error:
            raise InputError(f"cannot look at {str(path)!r}: {error}") from None
        if link:
            raise InputError(
                f"{str(path)!r} is a link, and normlab writes only to what lies in the folder of a run itself; put a "
                "plain file or folder there, or give another --out"
            )
    return path


def open_inside(folder: str | Path, name: str, flags: int) -> int:
    """A handle of a file in the folder, made if it is not there. The system refuses a link, even one of this moment."""
    path = inside(folder, name)
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)


@contextmanager
def locked(folder: str | Path, *, wait: float = math.inf) -> Iterator[None]:
    """Hold the right to write here, after `wait` seconds at most. The system frees it when a process dies, however."""
    until = time.monotonic() + max(wait, GRACE)
    handle = open_inside(folder, LOCK, os.O_RDWR)  # never truncated: it is only held
    try:
        while fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise InputError(
                        f"another process is working in {str(folder)!r}; wait for it to end, or give another --out"
                    ) from None
                time.sleep(POLL)
        yield
    finally:
        os.close(handle)


def is_locked(folder: str | Path) -> bool:
    """Is a process working here now?"""
    if fcntl is None or not inside(folder, LOCK).exists():
        return False
    try:
        handle = os.open(inside(folder, LOCK), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def whole(folder: str | Path, *, last: str, parts: Sequence[str]) -> Iterator[Path]:
    """Yields a folder to write files to; once all of them are on the disk, they take their names in this one.

    `last` is the file without which nobody reads the others: it goes first and comes last, so that files of two writings
    are never read together. Files that match one of `parts` and were not written again go. What else lies here stays.
    """
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        room = inside(home, INCOMING)
        shutil.rmtree(room, ignore_errors=True)  # left by a process that was killed
        room.mkdir()
        try:
            with naming(home):
                yield room
            new = sorted(room.iterdir(), key=lambda path: path.name == last)
            for path in room.rglob("*"):
                sync(path)
            old = [path for glob in parts for path in home.glob(glob) if not (room / path.name).exists()]
            if old or any(not _same(path, home / path.name) for path in new):
                (home / last).unlink(missing_ok=True)
                for path in old:
                    path.unlink()
                for path in new:
                    if path.is_dir():
                        shutil.rmtree(home / path.name, ignore_errors=True)
                    path.replace(home / path.name)
                sync(home)
        finally:
            shutil.rmtree(room, ignore_errors=True)


def _same(path: Path, other: Path) -> bool:
    return other.is_file() and not other.is_symlink() and filecmp.cmp(path, other, shallow=False)


# -- progress ----------------------------------------------------------------------------------------------------------
class Heartbeat:
    """A file whose time says when the work last went on; touched every few seconds at most, so that it costs nothing."""

    def __init__(self, folder: Path, *, every: float = BEAT) -> None:
        self.folder, self.every, self._last = folder, every, -math.inf

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._last < self.every:
            return
        self._last = now
        handle = open_inside(self.folder, HEARTBEAT, os.O_WRONLY)
        try:
            os.utime(handle)
        finally:
            os.close(handle)


def last_beat(folder: str | Path) -> float | None:
    """When the work here last went on (seconds since 1970), as far as its files tell; None where it has not begun."""
    times = []
    for name in (HEARTBEAT, "log.jsonl", "checkpoint"):
        try:
            times.append((Path(folder) / name).lstat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)


# -- records -----------------------------------------------------------------------------------------------------------
def read_json(path: str | Path, *, remedy: str) -> Any:
    """The value in a JSON file of ours. `remedy` says what to do where it is damaged."""
    raw = read_bytes(path, what="the record", most=LIMITS.record_bytes)
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise damaged(path, f"it is not the JSON that normlab writes ({error})", remedy) from None


def read_object(path: str | Path, *, remedy: str, keys: Mapping[str, type | tuple[type, ...]] = {}) -> dict[str, Any]:
    """A JSON object with at least these keys, of these types."""
    value = read_json(path, remedy=remedy)
    if not isinstance(value, dict):
        raise damaged(path, f"it holds {_name(value)} where an object was expected", remedy)
    for key, kind in keys.items():
        if key not in value:
            raise damaged(path, f"the key {key!r} is missing", remedy)
        if not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is int):
            raise damaged(path, f"{key!r} is {_name(value[key])}", remedy)
    return value


def parse(schema: type[Schema], value: object, *, path: str | Path, remedy: str) -> Schema:
    """A value from a file of ours as the type that was written."""
    if not isinstance(value, dict):
        raise damaged(path, f"it holds {_name(value)} where an object was expected", remedy)
    try:
        return schema.from_dict(value)
    except ConfigError as error:
        raise damaged(path, str(error), remedy) from None


def seal(body: dict[str, object]) -> dict[str, object]:
    """The same object with a checksum of its own values."""
    return {**body, "checksum": _digest(body)}


def check_seal(body: Mapping[str, object], path: str | Path, *, remedy: str) -> None:
    """Raise if a sealed object has changed. Records of earlier versions have no seal."""
    rest = {key: value for key, value in body.items() if key != "checksum"}
    if "checksum" in body and body["checksum"] != _digest(rest):
        raise damaged(path, "its checksum does not match", remedy)


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def damaged(path: str | Path, why: str, remedy: str) -> DamagedError:
    return DamagedError(f"{str(path)!r} is damaged: {why}; {remedy}")


def _name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
