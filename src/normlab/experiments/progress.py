"""Where a sweep stands, from its folder alone: what has ended, what runs, what waits, what failed and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from normlab import plugins
from normlab.errors import InputError
from normlab.experiments.runs.folder import last_step, load, read_summary
from normlab.experiments.runs.stack import stacks
from normlab.experiments.sweep import failure, read_sweep
from normlab.store import is_locked, last_beat

State = Literal["finished", "diverged", "running", "stopped", "waiting", "failed", "damaged"]
ORDER: tuple[State, ...] = ("running", "failed", "damaged", "stopped", "waiting", "diverged", "finished")


@dataclass(frozen=True)
class RunProgress:
    """One run. `quiet` is how many seconds ago it last went on; `why` is said of what failed."""

    run: str
    state: State
    step: int
    steps: int | None
    quiet: float | None = None
    why: str | None = None


@dataclass(frozen=True)
class SweepProgress:
    """`working`: a process holds the folder now."""

    folder: str
    kind: str
    working: bool
    runs: tuple[RunProgress, ...]

    @property
    def complete(self) -> bool:
        """Nothing is under way or missing, as far as the folder tells: later waves may not be planned yet."""
        return not self.working and all(run.state in ("finished", "diverged") for run in self.runs)

    def sentence(self) -> str:
        counts = Counter(run.state for run in self.runs)
        parts = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
        who = "is being worked on" if self.working else "is not being worked on"
        rest = "" if self.complete or self.working else "; run its command again to go on"
        return f"{self.folder!r} ({self.kind}) {who}: {', '.join(parts) or 'no run has begun'}{rest}."


def read_progress(folder: str | Path, *, now: float | None = None) -> SweepProgress:
    """What the files of a sweep say at this moment."""
    folder, now = Path(folder), time.time() if now is None else now
    kind = read_sweep(folder).kind
    stacked = {name: folder / names[0] / "stacked" for names in stacks(folder) for name in names}
    places = sorted(path.parent for path in folder.glob("*/config.yaml"))
    runs = [_run(place, stacked.get(place.name, place), now) for place in places]
    runs.sort(key=lambda run: (ORDER.index(run.state), run.run))
    return SweepProgress(str(folder), kind, is_locked(folder), tuple(runs))


def _run(place: Path, home: Path, now: float) -> RunProgress:
    """`home` is where its process works: the run's own folder, or that of its stack."""
    beat = max((t for t in (last_beat(home), last_beat(place)) if t is not None), default=None)
    quiet = None if beat is None else max(0.0, now - beat)
    try:
        with plugins.records():
            steps = load(place).train.steps
        done = read_summary(place)
        error = failure(place)
    except InputError as error_:
        return RunProgress(place.name, "damaged", 0, None, quiet, str(error_))
    if done is not None:
        status: State = "diverged" if done["status"] == "diverged" else "finished"
        made = done.get("step")
        return RunProgress(place.name, status, made if isinstance(made, int) and made else steps, steps)
    step = last_step(place)
    if is_locked(home):
        return RunProgress(place.name, "running", step, steps, quiet)
    if error is not None:
        return RunProgress(place.name, "failed", step, steps, quiet, error)
    return RunProgress(place.name, "stopped" if step else "waiting", step, steps, quiet)


def rows(found: Sequence[RunProgress]) -> list[dict[str, object]]:
    """For a table in a terminal."""
    return [
        {
            "run": run.run,
            "state": run.state,
            "step": f"{run.step}/{run.steps if run.steps is not None else '?'}",
            "last progress": "-" if run.quiet is None else f"{run.quiet:.0f} s ago",
            "why": run.why or "",
        }
        for run in found
    ]
