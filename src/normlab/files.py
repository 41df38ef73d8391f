"""Files that survive a crash, and files that come from outside.

Writing: to a temporary name, synced, then renamed. Reading: never more than a limit, never a device.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from normlab.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows: temporary files of a killed process stay there
    fcntl = None  # type: ignore[assignment]

MEGABYTE = 1 << 20
NEW = 2.0  # seconds: a temporary file may be this young before its writer holds it


@dataclass(frozen=True)
class InputLimits:
    """The most that is taken from outside. What is larger is refused in one sentence, before it costs memory or time."""

    config_bytes: int = 16 * MEGABYTE  # a configuration of a model from outside: JSON
    yaml_bytes: int = MEGABYTE  # a configuration of ours: YAML, which takes a second for every 20,000 values
    yaml_values: int = 20_000  # values in it, with every alias written out
    text_bytes: int = 512 * MEGABYTE  # a text to train on, which is held in memory
    sample_bytes: int = 16 * MEGABYTE  # of a text to diagnose with: what lies behind is not read
    record_bytes: int = 1024 * MEGABYTE  # a log, or another record that we wrote
    vocabulary_bytes: int = 64 * MEGABYTE  # a vocab.txt
    layers: int = 10_000  # of a model from outside
    width: int = 1_000_000  # of any of its layers, and the labels of its head
    vocabulary: int = 100_000_000
    compile_seconds: float = 60.0  # building the C kernels
    silent_seconds: float = 3600.0  # a run of a sweep without a sign of progress: then it is ended and tried again


LIMITS = InputLimits()


# -- reading -----------------------------------------------------------------------------------------------------------
def read_bytes(path: str | Path, *, what: str, most: int, cut: bool = False) -> bytes:
    """A whole file of at most `most` bytes; with `cut`, the first `most` bytes of it."""
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise InputError(f"cannot read {what} {str(path)!r}: it is a folder")
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise InputError(f"cannot read {what} {str(path)!r}: it is a device, and a file was expected")
        with open(path, "rb") as file:
            raw = file.read(most if cut else most + 1)
    except FileNotFoundError:
        raise InputError(f"cannot read {what} {str(path)!r}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"cannot read {what} {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > most:
        raise InputError(
            f"{what} {str(path)!r} is larger than the {_size(most)} that are read of such a file; give a smaller one"
        )
    return raw


def read_text(path: str | Path, *, what: str, most: int, cut: bool = False) -> str:
    """The same as UTF-8. With `cut`, a character that the limit divides is left out."""
    raw = read_bytes(path, what=what, most=most, cut=cut)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=len(raw) < most)
    except UnicodeDecodeError as error:
        if b"\0" in raw:
            raise InputError(f"{str(path)!r} is not text: it contains NUL bytes; give a plain UTF-8 file") from None
        raise InputError(
            f"{what} {str(path)!r} is not UTF-8 text (byte {error.start} is {raw[error.start]:#04x}); convert it, for "
            "example with iconv -t UTF-8"
        ) from None


def _size(count: int) -> str:
    return f"{count // MEGABYTE} MB" if count >= MEGABYTE else f"{count} bytes"


# -- writing -----------------------------------------------------------------------------------------------------------
@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary sibling to write to; on success it takes the name, on failure nothing is left behind.

    A link of that name is replaced, not followed.
    """
    path = Path(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(path.parent, path.name)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        try:
            if fcntl is not None:  # held while it is written: others see by it that it is not left over
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield temporary
            sync(temporary)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
            sync(path.parent)
        finally:
            os.close(handle)
            temporary.unlink(missing_ok=True)


def remove_stale(folder: Path, name: str) -> None:
    """Remove what killed processes left of earlier attempts at writing `name`."""
    if fcntl is None:
        return
    for left in folder.glob(f".{_literal(name)}.*.tmp"):
        with suppress(OSError), open(left, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            if time.time() - left.stat().st_mtime > NEW:
                left.unlink()


def write_text(path: str | Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: str | Path, value: object) -> Path:
    return write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk is reported without a name: add the one that was being written."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, f"while writing: {error.strerror}", str(path)) from None


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
