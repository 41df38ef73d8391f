"""Children that are struck down: forked from a process that has imported everything, so that a trial takes a moment.

A child counts its own file operations (Python's audit events) and strikes itself at the one that it was told.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from normlab.errors import NormlabError

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "fcntl.flock")
REFUSED, BROKEN, INTERRUPTED = 2, 70, 130


@dataclass(frozen=True)
class Strike:
    """`number` is the signal that the child sends itself before its file operation `at`."""

    at: int
    number: int = signal.SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a child ended: negative codes are signals."""

    code: int
    said: str

    @property
    def orderly(self) -> bool:
        """Done, refused in one sentence, or stopped by a signal; a traceback is none of these."""
        return self.code in (0, REFUSED, INTERRUPTED) or self.code < 0


def start(
    action: Callable[[], object], log: Path, *, strike: Strike | None = None, most_bytes: int | None = None
) -> int:
    """Fork a child that does this; returns its process number. `most_bytes` is the size that no file may exceed."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = BROKEN
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
        if strike is not None:
            _arm(strike)
        action()
        code = 0
    except (NormlabError, OSError) as error:  # what the command line turns into one sentence
        os.write(2, f"{error}\n".encode(errors="replace")[:4000])
        code = REFUSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def wait(pid: int, log: Path, *, seconds: float = 900.0) -> Ended:
    """A child that takes longer is a fault of its own."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return Ended(
                os.waitstatus_to_exitcode(status), log.read_text(errors="replace")[-2000:] if log.exists() else ""
            )
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Ended(BROKEN, f"it hung for {seconds:.0f} s")
        time.sleep(0.002)


def forked(
    action: Callable[[], object],
    log: Path,
    *,
    strike: Strike | None = None,
    most_bytes: int | None = None,
    seconds: float = 900.0,
) -> Ended:
    return wait(start(action, log, strike=strike, most_bytes=most_bytes), log, seconds=seconds)


def counted(action: Callable[[], object], log: Path) -> int:
    """How many file operations it takes."""

    def tell() -> None:
        seen = _count()
        action()
        os.write(1, f"operations {len(seen)}\n".encode())

    ended = forked(tell, log)
    assert ended.code == 0, ended.said
    return int(ended.said.rsplit("operations ", 1)[1])


def _arm(strike: Strike) -> None:
    seen = 0

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in OPERATIONS:
            seen += 1
            if seen == strike.at:
                os.kill(os.getpid(), strike.number)

    sys.addaudithook(hook)


def _count() -> list[str]:
    seen: list[str] = []
    sys.addaudithook(lambda event, _arguments: seen.append(event) if event in OPERATIONS else None)
    return seen
