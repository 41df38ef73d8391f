"""Faults that strike a run or a sweep; after each, the same command must bring it to the end that it has undisturbed."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools.faults.harness import BROKEN, REFUSED, Ended, Strike, counted, forked, start, wait
from tools.faults.jobs import Job

from normlab.errors import DamagedError, InputError

CANARY = "not ours, and to be left alone\n"


@dataclass(frozen=True)
class Blow:
    """What one trial did: how many blows fell, and what was wrong afterwards (None: nothing)."""

    tried: int
    fault: str | None = None


@dataclass
class Ground:
    """A place for the trials of one job: what it finds undisturbed, and a file outside that nobody may touch."""

    job: Job
    chance: random.Random = field(default_factory=random.Random)  # set anew for each trial

    def __post_init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"faults-{self.job.name}-"))
        self.log = self.home / "said"
        # Once here, so that no child has to load and to warm up anything: each is a fork of this process.
        self.job.run(self.home / "warm")
        gc.collect()
        gc.freeze()  # what is there stays there: a child that collects garbage need not copy every page of this process
        whole = self.home / "whole"
        self.operations = counted(partial(self.job.run, whole), self.log)
        self.expected = self.job.found(whole)
        assert self.expected, "the job found nothing"
        assert self.expected == self.job.found(self.home / "warm"), "the job does not repeat"
        self.whole, self.old = whole, self.home / "old"
        if self.job.before is not None:
            self.job.before(self.old)
        self.canary = self.home / "canary"
        self.canary.write_text(CANARY)

    def fresh(self) -> Path:
        """An empty place, or one with something older in it."""
        folder = self.home / "run"
        shutil.rmtree(folder, ignore_errors=True)
        if self.old.exists() and self.chance.random() < 0.5:
            shutil.copytree(self.old, folder)
        return folder

    def torn(self, folder: Path) -> str | None:
        """Is work that is one piece there in pieces?"""
        if self.job.before is None:
            return None
        states = ({}, self.expected, self.job.found(self.old))
        return None if self.job.found(folder) in states else "it loads, and is neither the old one nor the new one"

    def strike(self, folder: Path, number: int) -> bool:
        """Run with a strike at a random operation; False where it came to its end before."""
        at = self.chance.randint(1, self.operations)
        ended = forked(partial(self.job.run, folder), self.log, strike=Strike(at, number))
        self.last = ended
        return ended.code != 0

    def finish(self, folder: Path, *, may_refuse: bool = False) -> str | None:
        """Run to the end; what is wrong with what is found there, or None."""
        return self.judge(forked(partial(self.job.run, folder), self.log), folder, may_refuse=may_refuse)

    def judge(self, ended: Ended, folder: Path, *, may_refuse: bool = False) -> str | None:
        if self.canary.read_text() != CANARY:
            self.canary.write_text(CANARY)
            return "a file outside was changed"
        if ended.code == REFUSED and may_refuse:
            lines = ended.said.strip().splitlines()
            return None if lines and "Traceback" not in ended.said else "refused without a sentence"
        if ended.code != 0:
            return f"ended with {ended.code}: {ended.said.strip()[-400:]}"
        try:
            same = self.job.found(folder) == self.expected
        except DamagedError as error:  # whoever reads the numbers is told
            return None if may_refuse else str(error)
        return None if same else "other numbers than the undisturbed run"

    def close(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def struck(ground: Ground, number: int) -> Blow:
    """Up to four strikes in a row, then the end. Each strike counts as tried."""
    strikes, fault = 0, None
    folder = ground.fresh()
    for _ in range(ground.chance.randint(1, 4)):
        if not ground.strike(folder, number):
            break
        strikes += 1
        if ground.last.code == BROKEN:
            fault = f"a traceback: {ground.last.said.strip()[-300:]}"
        fault = fault or ground.torn(folder)
    return Blow(strikes, fault or ground.finish(folder))


def together(ground: Ground) -> Blow:
    """Two or three processes in one folder at once, one of them struck down in every other trial."""
    folder, count = ground.fresh(), ground.chance.choice((2, 3))
    logs = [ground.home / f"said-{i}" for i in range(count)]
    strike = Strike(ground.chance.randint(1, ground.operations)) if ground.chance.random() < 0.5 else None
    pids = [
        start(partial(ground.job.run, folder), log, strike=strike if i == 0 else None) for i, log in enumerate(logs)
    ]
    ends = [wait(pid, log) for pid, log in zip(pids, logs, strict=True)]
    broken = [ended.said[-300:] for ended in ends if not ended.orderly]
    return Blow(1, f"a traceback: {broken[0]}" if broken else ground.finish(folder))


def full(ground: Ground) -> Blow:
    """No file may grow beyond a random size: the disk is full in the middle of one. Then there is room again."""
    largest = max(path.stat().st_size for path in ground.whole.rglob("*") if path.is_file())
    folder = ground.fresh()
    most = ground.chance.randint(1, largest)
    ended = forked(partial(ground.job.run, folder), ground.log, most_bytes=most)
    # What it says goes to a file too, and is cut at the same size.
    whole = len(ended.said.encode()) < most
    if ended.code == REFUSED and whole and "while writing" in ended.said and str(folder) not in ended.said:
        return Blow(1, f"no path is named: {ended.said.strip()}")
    if not ended.orderly:
        return Blow(1, f"a traceback: {ended.said.strip()[-300:]}")
    return Blow(1, ground.torn(folder) or ground.finish(folder))


def _flip(path: Path, chance: random.Random, _other: Path) -> None:
    raw = bytearray(path.read_bytes() or b"x")
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def _swap(path: Path, chance: random.Random, _other: Path) -> None:
    """With a neighbour; alone in its folder, with its own end."""
    near = chance.choice([other for other in sorted(path.parent.iterdir()) if other.is_file()])
    here, there = path.read_bytes(), near.read_bytes()
    if near == path:
        path.write_bytes(here[len(here) // 2 :] + here[: len(here) // 2])
    else:
        path.write_bytes(there)
        near.write_bytes(here)


def _link(path: Path, _chance: random.Random, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


DAMAGE: dict[str, Callable[[Path, random.Random, Path], object]] = {
    "cut": lambda path, chance, _: os.truncate(path, chance.randrange(max(1, path.stat().st_size))),
    "flipped": _flip,
    "garbage": lambda path, chance, _: path.write_bytes(chance.randbytes(chance.randrange(400))),
    "null": lambda path, *_: path.write_text("null"),
    "swapped": _swap,
    "removed": lambda path, *_: path.unlink(),
    "a folder": lambda path, *_: (path.unlink(), path.mkdir()),
    "a link": _link,
}


def damaged(ground: Ground) -> Blow:
    """One file of an interrupted or a finished run is damaged: the numbers stay the same, or one sentence says why not."""
    folder = ground.fresh()
    if ground.chance.random() < 0.5:
        ground.strike(folder, signal.SIGKILL)
    else:
        shutil.copytree(ground.whole, folder, dirs_exist_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []
    if not files:
        return Blow(0)
    path, kind = ground.chance.choice(files), ground.chance.choice(sorted(DAMAGE))
    DAMAGE[kind](path, ground.chance, ground.canary)
    try:
        fault = ground.finish(folder, may_refuse=True)
    except InputError:  # a link, a folder in the place of a file: one sentence too
        fault = None
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    return Blow(1, fault and f"{path.relative_to(folder)} {kind}: {fault}")


FAULTS: dict[str, tuple[Callable[[Ground], Blow], float]] = {
    "kill -9": (partial(struck, number=signal.SIGKILL), 1.0),
    "Ctrl-C": (partial(struck, number=signal.SIGINT), 0.1),
    "SIGTERM": (partial(struck, number=signal.SIGTERM), 0.1),
    "several at once": (together, 0.2),
    "full disk": (full, 0.2),
    "damaged file": (damaged, 0.2),
}
"""Each with how often it is tried for one kill."""
