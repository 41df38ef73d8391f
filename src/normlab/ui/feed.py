"""What a folder of runs says at this moment, brought up to date by reading only what is new.

Runs are found by their config.yaml, in the folder itself or up to three levels below it. Nothing is written, no link is
followed, and whatever is half written or damaged is passed over until it is whole.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from normlab import plugins
from normlab.errors import NormlabError
from normlab.experiments.progress import ORDER, State
from normlab.experiments.runs.folder import load, read_summary
from normlab.experiments.runs.stack import stacks
from normlab.experiments.runs.tail import MOST, LogTail
from normlab.experiments.sweep import failure
from normlab.schemes.names import label
from normlab.store import is_locked

LEVELS = 3
POINTS, FEWEST = 20_000, 100  # points that are kept of all curves together, and of one at least
LOOK = 0.4  # seconds: between two looks at the logs at least
WALK = 2.0  # seconds: between two searches for new runs
LOOKING = 0.5  # seconds that a look should take: long logs and configurations that do not fit in wait for the next
READING = 0.05  # seconds of every look that may go into configurations, however long the logs were


@dataclass(frozen=True)
class Facts:
    """What config.yaml says; known a little later than the curve."""

    scheme: str
    steps: int
    lr: float
    depth: int


@dataclass
class RunFeed:
    """One run. `revision` rises when anything of it changes."""

    folder: Path
    name: str
    sweep: str
    log: LogTail
    facts: Facts | None = None
    state: State = "waiting"
    why: str = ""
    revision: int = 0
    _summary: tuple[int, int] | None = None

    @property
    def step(self) -> int:
        return self.log.training[-1].step if self.log.training else 0

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "diverged")

    @property
    def seconds(self) -> float | None:
        """Of training, for the whole run: measured where it ended, expected where it runs."""
        if not self.log.training or not self.step or self.facts is None:
            return None
        spent = self.log.training[-1].seconds
        return spent if self.ended else spent * self.facts.steps / self.step

    @property
    def left(self) -> float | None:
        whole = self.seconds
        if self.ended or whole is None or self.facts is None:
            return 0.0 if self.ended else None
        return whole * max(0.0, 1 - self.step / max(1, self.facts.steps))

    def refresh(self, home: Path, *, skim: bool = False) -> bool:
        """Has anything changed? `home` is where its process works: its own folder, or that of its stack."""
        changed = self.log.read(skim=skim)
        before = self.state, self.why
        if not self._ended():
            self._state(home)
        return changed or before != (self.state, self.why)

    def _ended(self) -> bool:
        """Read the summary once, and again when it changes."""
        try:
            found = (self.folder / "summary.json").lstat()
        except OSError:
            self._summary = None
            return False
        mark = (found.st_mtime_ns, found.st_size)
        if mark != self._summary:
            try:
                done = read_summary(self.folder)
            except NormlabError as error:
                self.state, self.why, self._summary = "damaged", str(error), mark
                return True
            self._summary = mark
            self.why = ""
            self.state = "diverged" if done is not None and done.get("status") == "diverged" else "finished"
        return True

    def _state(self, home: Path) -> None:
        try:
            error = failure(self.folder)
            working = is_locked(home)
        except NormlabError as damaged:
            self.state, self.why = "damaged", str(damaged)
            return
        self.why = ""
        if working:
            self.state = "running"
        elif error is not None:
            self.state, self.why = "failed", error
        else:
            self.state = "stopped" if self.log.offset or self.log.training else "waiting"

    def know(self) -> bool:
        """Read config.yaml, which a running process may be about to write."""
        try:
            with plugins.records(plugins=False):
                config = load(self.folder)
        except NormlabError as error:
            self.state, self.why = "damaged", str(error)
            return False
        self.facts = Facts(label(config.model.scheme), config.train.steps, config.train.lr, config.model.depth)
        return True


@dataclass
class FolderFeed:
    """All runs below a folder. `refresh` may be called as often as one likes, from any thread."""

    root: Path
    runs: dict[str, RunFeed] = field(default_factory=dict)
    revision: int = 0
    _homes: dict[str, Path] = field(default_factory=dict)
    _looked: float = float("-inf")
    _walked: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, *, now: float | None = None) -> int:
        """Bring everything up to date, at most every so often; returns the revision."""
        with self._lock:
            begun = time.monotonic()
            now = begun if now is None else now
            if now - self._looked < LOOK:
                return self.revision
            if now - self._walked >= WALK:
                self._walk()
                self._walked = now
            changed = []
            for name, run in self.runs.items():
                skim = run.revision == 0 or time.monotonic() > begun + LOOKING  # first a little of every run
                if run.refresh(self._homes.get(name, run.folder), skim=skim):
                    changed.append(name)
            until = max(begun + LOOKING, time.monotonic() + READING)
            for name, run in self.runs.items():
                if run.facts is None and time.monotonic() < until and run.know():
                    changed.append(name)
            if changed:
                self.revision += 1
            for name in changed:
                self.runs[name].revision = self.revision
            self._looked = now
            return self.revision

    def _walk(self) -> None:
        found = {_name(self.root, folder): folder for folder in _runs(self.root, LEVELS)}
        for name in [name for name in self.runs if name not in found]:
            del self.runs[name]
            self.revision += 1
        for name, folder in found.items():
            if name not in self.runs:
                sweep = _name(self.root, folder.parent) if folder != self.root else ""
                most = max(FEWEST, min(MOST, POINTS // len(found)))
                self.runs[name] = RunFeed(folder, name, sweep, LogTail(folder / "log.jsonl", most=most))
                self.revision += 1
        self._homes = {}
        for parent in {run.folder.parent for run in self.runs.values()}:
            try:
                together = stacks(parent)
            except NormlabError:
                continue
            for names in together:
                for member in names:
                    self._homes[_name(self.root, parent / member)] = parent / names[0] / "stacked"

    # -- what is said ------------------------------------------------------------------------------------------------
    def sentence(self) -> str:
        counts = Counter(run.state for run in self.runs.values())
        if not counts:
            return "No run has begun here yet."
        return f"{', '.join(f'{counts[state]} {state}' for state in ORDER if counts[state])}."

    def left(self) -> float | None:
        """Seconds until all is done, as far as runs that began tell; None where nothing runs."""
        running = [run for run in self.runs.values() if run.state == "running"]
        known = [seconds for run in self.runs.values() if (seconds := run.seconds) is not None]
        if not running or not known:
            return None
        usual = sum(known) / len(known)
        waiting = [run for run in self.runs.values() if run.state in ("waiting", "stopped")]
        work = sum(usual if run.left is None else run.left for run in (*running, *waiting))
        return work / len(running)


def _runs(folder: Path, levels: int) -> list[Path]:
    """Folders with a config.yaml; links are not followed, and a run holds no other runs."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    if any(entry.name == "config.yaml" for entry in entries):
        return [folder]
    if levels == 0:
        return []
    inner = [e for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
    return [run for entry in sorted(inner, key=lambda e: e.name) for run in _runs(folder / entry.name, levels - 1)]


def _name(root: Path, folder: Path) -> str:
    return folder.relative_to(root).as_posix() if folder != root else "."
