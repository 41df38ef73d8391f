"""Faults that strike a run or a sweep; after each, the same command must bring it to the end that it has undisturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.faults.harness import BROKEN, REFUSED, Ended, Strike, Tally, counted, forked, start, wait
from tools.faults.jobs import Job, found

from normlab.errors import DamagedError, InputError

CANARY = "not ours, and to be left alone\n"


@dataclass
class Ground:
    """A place for the trials of one job: what it finds undisturbed, and a file outside that nobody may touch."""

    job: Job
    chance: random.Random

    def __post_init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"faults-{self.job.name}-"))
        self.log = self.home / "said"
        # Once here, so that no child has to load and to warm up anything: each is a fork of this process.
        self.job.run(self.home / "warm")
        whole = self.home / "whole"
        self.operations = counted(partial(self.job.run, whole), self.log)
        self.expected = found(whole)
        assert self.expected, "the job found nothing"
        self.whole = whole
        self.canary = self.home / "canary"
        self.canary.write_text(CANARY)

    def fresh(self) -> Path:
        folder = self.home / "run"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

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
            same = found(folder) == self.expected
        except DamagedError as error:  # whoever reads the numbers is told
            return None if may_refuse else str(error)
        return None if same else "other numbers than the undisturbed run"

    def close(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def struck(ground: Ground, tally: Tally, number: int, *, trials: int, until: float) -> None:
    """Up to four strikes in a row, then the end. Each strike counts as tried."""
    while tally.tried < trials and time.monotonic() < until:
        folder, strikes = ground.fresh(), 0
        fault = None
        for _ in range(ground.chance.randint(1, 4)):
            if not ground.strike(folder, number):
                break
            strikes += 1
            if ground.last.code == BROKEN:
                fault = f"a traceback: {ground.last.said.strip()[-300:]}"
        fault = fault or ground.finish(folder)
        for _ in range(strikes):
            tally.note(fault)


def together(ground: Ground, tally: Tally, *, trials: int, until: float) -> None:
    """Two or three processes in one folder at once, one of them struck down in every other trial."""
    while tally.tried < trials and time.monotonic() < until:
        folder, count = ground.fresh(), ground.chance.choice((2, 3))
        logs = [ground.home / f"said-{i}" for i in range(count)]
        strike = Strike(ground.chance.randint(1, ground.operations)) if ground.chance.random() < 0.5 else None
        pids = [
            start(partial(ground.job.run, folder), log, strike=strike if i == 0 else None) for i, log in enumerate(logs)
        ]
        ends = [wait(pid, log) for pid, log in zip(pids, logs, strict=True)]
        broken = [ended.said[-300:] for ended in ends if not ended.orderly]
        tally.note(f"a traceback: {broken[0]}" if broken else ground.finish(folder))


def full(ground: Ground, tally: Tally, *, trials: int, until: float) -> None:
    """No file may grow beyond a random size: the disk is full in the middle of one. Then there is room again."""
    largest = max(path.stat().st_size for path in ground.whole.rglob("*") if path.is_file())
    while tally.tried < trials and time.monotonic() < until:
        folder = ground.fresh()
        most = ground.chance.randint(1, largest)
        ended = forked(partial(ground.job.run, folder), ground.log, most_bytes=most)
        if ended.code == REFUSED and "while writing" in ended.said and str(folder) not in ended.said:
            tally.note(f"no path is named: {ended.said.strip()}")
        elif not ended.orderly:
            tally.note(f"a traceback: {ended.said.strip()[-300:]}")
        else:
            tally.note(ground.finish(folder))


def _flip(path: Path, chance: random.Random, _other: Path) -> None:
    raw = bytearray(path.read_bytes() or b"x")
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def _link(path: Path, _chance: random.Random, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


DAMAGE: dict[str, Callable[[Path, random.Random, Path], object]] = {
    "cut": lambda path, chance, _: os.truncate(path, chance.randrange(max(1, path.stat().st_size))),
    "flipped": _flip,
    "garbage": lambda path, chance, _: path.write_bytes(chance.randbytes(chance.randrange(400))),
    "null": lambda path, *_: path.write_text("null"),
    "removed": lambda path, *_: path.unlink(),
    "a folder": lambda path, *_: (path.unlink(), path.mkdir()),
    "a link": _link,
}


def damaged(ground: Ground, tally: Tally, *, trials: int, until: float) -> None:
    """One file of an interrupted or a finished run is damaged: the numbers stay the same, or one sentence says why not."""
    while tally.tried < trials and time.monotonic() < until:
        folder = ground.fresh()
        if ground.chance.random() < 0.5:
            ground.strike(folder, signal.SIGKILL)
        else:
            shutil.copytree(ground.whole, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []
        if not files:
            continue
        path, kind = ground.chance.choice(files), ground.chance.choice(sorted(DAMAGE))
        DAMAGE[kind](path, ground.chance, ground.canary)
        try:
            fault = ground.finish(folder, may_refuse=True)
        except InputError:  # a link, a folder in the place of a file: one sentence too
            fault = None
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        tally.note(fault and f"{path.relative_to(folder)} {kind}: {fault}")
