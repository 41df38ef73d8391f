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

import torch

from normlab.experiments.claims import book
from normlab.experiments.claims.ledger import find
from normlab.experiments.claims.measured.trained.four_tasks import ON_THE_WAY, options_of
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


@dataclass(frozen=True)
class Measured:
    """Claims that are measured in one go, cheap ones first; evidence that is there already is not made again.

    `again`: those that read how far long runs have come.
    """

    claims: tuple[str, ...]
    again: bool = False
    folder: str = "claims-length"


CHEAP = ("002-02", "002-01", "002-15", "002-20", "null-total-variation", "002-09", "002-18", "002-24", "002-05",
         "null-total-variation-on-dyck", "null-total-variation-on-tomita", "null-total-variation-on-set-complement",
         "null-total-variation-on-maximum-retrieval", "null-sequence-auc", "null-spikes-in-a-run-of-2-layers",
         "null-gap-between-legal-and-illegal-tokens", "null-total-variation-by-length",
         "null-total-variation-of-averaged-weights", "null-attention-entropy-over-its-maximum",
         "002-04", "002-19",
         "null-total-variation-by-width-on-dyck", "null-total-variation-by-width-on-tomita",
         "null-total-variation-by-width-on-set-complement", "null-total-variation-by-width-on-maximum-retrieval", "002-22",
         "null-loss-at-twice-the-training-length-minus-at-the-training-length", "null-held-out-loss",
         "null-change-of-the-loss-through-the-decay", "null-held-out-loss-of-deep-models")  # fmt: skip
NETWORKS = ("000-06", "000-05", "000-07", "001-24", "001-25", "000-25", "001-13", "000-17", "004-04", "002-20", "001-06",
            "001-14", "000-14", "004-10", "000-19", "001-15")  # fmt: skip
READING = ("002-03", "002-14", "002-25", "002-26")
LOSSES = ("004-10", "000-21", "000-19", "001-18")


def lengthgen(name: str, part: str) -> LengthgenRequest:
    return LengthgenRequest(**preset(name).options(part))  # type: ignore[arg-type]


def compare(name: str) -> CompareRequest:
    return CompareRequest(**ladder(name))  # type: ignore[arg-type]


def slices() -> Iterator[Slice | Measured]:
    million = lengthgen("million-steps", "vocab-16")
    yield Slice("set-complement-1m", million, 10_000)
    yield Measured(NETWORKS)
    yield Measured(CHEAP)
    yield Measured(READING)
    yield Slice("ladder-small", compare("ladder-small"))
    yield Measured(("000-14",))
    for step in (30_000, 100_000):
        yield Slice("set-complement-1m", million, step)
    # The folder is that of the claims: `normlab claims run 002-03 --out RUNS/claims-length` reads these runs.
    tasks = {task: LengthgenRequest(**{**options_of(task), "seeds": 8}) for task in FOUR_TASKS}  # type: ignore[arg-type]
    for step in (*ON_THE_WAY, None):
        for task, request in tasks.items():
            yield Slice(f"claims-length/benchmark-tasks/{task}", request, step)
    yield Measured(READING, again=True)
    yield Measured(LOSSES)
    yield Slice("ladder-deep", compare("ladder-deep"))
    yield Slice("ladder-12", compare("ladder"))
    yield Measured(("000-14",), again=True)
    yield Slice("set-complement-1m", million, 300_000)
    wide = lengthgen("million-steps", "vocab-32")
    yield Slice("set-complement-v32", wide, 30_000)
    yield Slice("set-complement-1m", million)
    yield Slice("set-complement-v32", wide)
    yield Measured(READING, again=True)
    yield Slice("ladder-24", compare("ladder-24"))


def measured(part: Measured, runs: Path) -> None:
    folder = runs / part.folder
    for name in part.claims:
        null = name.startswith("null-")
        file = folder / f"{name if null else find(name).evidence}.json"
        if file.exists() and not part.again:
            continue
        if null:
            book.run_null(name, folder=folder)
        else:
            print(book.run(find(name), folder=folder).answer, flush=True)


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
    torch.set_num_threads(1)
    for part in slices():
        if asked.only in (None, part.folder):
            begun = time.monotonic()
            if isinstance(part, Measured):
                measured(part, asked.runs)
                what = f"{len(part.claims)} claims and nulls"
            else:
                carry_out(part, asked.runs)
                what = f"{part.folder} to {part.until or 'its end'}"
            print(f"{what}: {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
