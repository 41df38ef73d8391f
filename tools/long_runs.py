"""The runs that take hours, in slices: stop it at any time, start it again, and it goes on where it was.

    python tools/long_runs.py RUNS [--only NAME]

Everything is under the folder RUNS. The order gives useful shorter results at every moment: all arms get to a step before
one of them goes further. One process, one thread; put it on an idle core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from normlab.experiments.claims.measured.four_tasks import ON_THE_WAY, options_of
from normlab.experiments.compare.presets import preset as ladder
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.lengthgen.presets import FOUR_TASKS, preset
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.protocol import experiment
from normlab.experiments.request import Request
from normlab.experiments.sweep import Sweep


@dataclass(frozen=True)
class Slice:
    """A sweep, brought to a step of each of its runs; None: to its end."""

    folder: str
    request: Request
    until: int | None = None


def lengthgen(name: str, part: str) -> LengthgenRequest:
    return LengthgenRequest(**preset(name).options(part))  # type: ignore[arg-type]


def compare(name: str) -> CompareRequest:
    return CompareRequest(**ladder(name))  # type: ignore[arg-type]


def slices() -> Iterator[Slice]:
    million = lengthgen("million-steps", "vocab-16")
    for step in (10_000, 30_000, 100_000):
        yield Slice("set-complement-1m", million, step)
    yield Slice("ladder-small", compare("ladder-small"))
    # The folder is that of the claims: `normlab claims run 002-03 --out RUNS/claims-length` reads these runs.
    tasks = {task: LengthgenRequest(**{**options_of(task), "seeds": 8}) for task in FOUR_TASKS}  # type: ignore[arg-type]
    for step in (*ON_THE_WAY, None):
        for task, request in tasks.items():
            yield Slice(f"claims-length/benchmark-tasks/{task}", request, step)
    yield Slice("ladder-12", compare("ladder"))
    yield Slice("set-complement-1m", million, 300_000)
    wide = lengthgen("million-steps", "vocab-32")
    yield Slice("set-complement-v32", wide, 30_000)
    yield Slice("set-complement-1m", million)
    yield Slice("set-complement-v32", wide)
    yield Slice("ladder-24", compare("ladder-24"))


def carry_out(part: Slice, runs: Path) -> None:
    """As `Experiment.carry_out`, but a run that pauses is not a fault; the report is written from what has ended."""
    asked = experiment(part.request.kind)
    asked.check(part.request)
    sweep = Sweep(runs / part.folder, HereExecutor(part.until), quiet=True)
    settled = sweep.settle(part.request, lambda: asked.settle(part.request, sweep.executor))
    waves = 0
    while (wave := asked.plan(part.request, settled, waves, sweep.folder)) is not None:
        ended = sweep.run(wave.runs, what=wave.what)
        if len(ended) < len(wave.runs):  # paused, or failed: a later wave would build on what is missing
            sweep.check()
            return
        waves += 1
    asked.finish(part.request, settled, sweep)
    asked.write(asked.analyse([sweep.folder]), sweep.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="where everything is kept")
    parser.add_argument("--only", help="the folder of one sweep")
    asked = parser.parse_args()
    for part in slices():
        if asked.only in (None, part.folder):
            begun = time.monotonic()
            carry_out(part, asked.runs)
            print(f"{part.folder} to {part.until or 'its end'}: {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
