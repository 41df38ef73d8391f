"""`normlab stability`: learning rate x warm-up, per scheme and depth; two edges found by refinement, not by a dense grid.

One edge is where training stops being stable, the other where it stops learning (see `analyse` for the criteria).
Each is bracketed by a coarse grid, grown where it must, then bisected in log(rate).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from normlab.experiments.compare.tables import runs_csv
from normlab.experiments.protocol import Experiment, Wave
from normlab.experiments.request import Request
from normlab.experiments.runs.config import OLD_START, RunConfig
from normlab.experiments.runs.records import FinishedRun
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.shapes import round_3, run_name
from normlab.experiments.stability import page as pages
from normlab.experiments.stability.analyse import analyse, bracket, judged, top
from normlab.experiments.stability.request import Line, StabilityRequest
from normlab.experiments.stability.result import JudgedRun, StabilityMap
from normlab.experiments.sweep import Settled, read_all, read_request, read_runs, unfinished
from normlab.model import TransformerConfig
from normlab.report import Page
from normlab.schemes.names import label, parse_scheme
from normlab.training import Schedule, TrainConfig

LOWEST, HIGHEST = 1e-7, 10.0


class Stability(Experiment[StabilityRequest, StabilityMap]):
    """`normlab stability`."""

    request: ClassVar[type[Request]] = StabilityRequest
    file: ClassVar[str] = "stability.json"

    def check(self, request: StabilityRequest) -> None:
        request.check()
        for line in request.lines():
            run_of(request, line, request.lrs[0], 0)

    def plan(self, request: StabilityRequest, settled: Settled, waves: int, folder: Path) -> Wave | None:
        """The grid, then what brackets an edge more closely, as long as there is such a rate."""
        rates = {line: set(request.lrs) for line in request.lines()}
        if waves > 0:
            more = next_rates(request, _judged(request, folder))
            if not any(more.values()):
                return None
            for line, found in more.items():
                rates[line] = set(found)
        wanted = {
            f"{run_name(line[0], line[1], lr, seed)}-w{line[2]}": run_of(request, line, lr, seed)
            for line, found in rates.items()
            for lr in sorted(found)
            for seed in range(request.seeds)
        }
        return Wave(f"round {waves + 1}", wanted)

    def analyse(self, folders: Sequence[Path], *, baseline: str | None = None) -> StabilityMap:
        return analyse(read_all(folders), notes=[note for folder in folders for note in _notes(folder)])

    def page(self, result: StabilityMap) -> Page:
        return pages.build(result)

    def tables(self, result: StabilityMap) -> Mapping[str, str]:
        return {"tables.md": pages.markdown(result), "cells.csv": runs_csv(result.cells)}

    def show(self, result: StabilityMap) -> None:
        pages.show(result)


EXPERIMENT = Stability()


def run_of(request: StabilityRequest, line: Line, lr: float, seed: int) -> RunConfig:
    scheme, depth, warmup = line
    return RunConfig(
        model=TransformerConfig(
            vocab_size=request.task.vocab_size, dim=request.dim, depth=depth, heads=request.heads,
            scheme=parse_scheme(scheme), tie_embeddings=request.task.embedding(request.dim) is None,
            **(OLD_START if request.start == "old" else {}),  # type: ignore[arg-type]
        ),
        task=request.task,
        train=TrainConfig(
            steps=request.steps, batch=request.batch, length=request.length, seed=seed, lr=lr, clip=request.clip,
            log_every=1, schedule=Schedule(kind="constant", warmup=warmup), checkpoint_every=max(20, request.steps // 2),
        ),
        score=HeldOut(validations=1, curve_sequences=1, sequences=32, layers=(), prune=False),
    )  # fmt: skip


# -- the search -------------------------------------------------------------------------------------------------------
def next_rate(stable: Mapping[float, bool], factor: float) -> float | None:
    """The next rate to try, given which are stable; None when the edge is bracketed within `factor`."""
    rates = sorted(stable)
    below, above = bracket(stable)
    if below is None:
        lower = round_3(rates[0] / 10)
        return lower if lower >= LOWEST else None
    if above is None:
        higher = round_3(rates[-1] * 10)
        return higher if higher <= HIGHEST else None
    return _between(below, above, factor)


def next_learning_rate(learned: Mapping[float, bool], factor: float) -> float | None:
    """The same for the highest rate that learns; None too where none does, or all that were tried do."""
    below, above = top(learned)
    return None if below is None or above is None else _between(below, above, factor)


def _between(below: float, above: float, factor: float) -> float | None:
    if above / below <= factor * (1 + 1e-9):
        return None
    middle = round_3(math.sqrt(below * above))
    return middle if below < middle < above else None


def next_rates(request: StabilityRequest, runs: Iterable[tuple[Line, JudgedRun]]) -> dict[Line, list[float]]:
    """What to try next on each line of the map; nothing where both edges are bracketed."""
    stable: dict[Line, dict[float, bool]] = defaultdict(dict)
    learned: dict[Line, dict[float, bool]] = defaultdict(dict)
    for line, run in runs:
        stable[line][run.lr] = stable[line].get(run.lr, True) and run.stable
        learned[line][run.lr] = learned[line].get(run.lr, True) and run.learned
    found: dict[Line, set[float | None]] = {line: set() for line in stable}
    for line, rates in found.items():
        if request.edges != "learning":
            rates.add(next_rate(stable[line], request.factor))
        if request.edges != "stable":
            rates.add(next_learning_rate(learned[line], request.factor))
    return {line: sorted(rate for rate in rates if rate is not None) for line, rates in found.items()}


def _judged(request: StabilityRequest, folder: Path) -> list[tuple[Line, JudgedRun]]:
    """The finished runs of the lines that are asked for."""
    lines = set(request.lines())
    return [(line, judged(run)) for run in read_runs(folder) if (line := _line(run)) in lines]


def _line(run: FinishedRun) -> Line:
    return label(run.config.model.scheme), run.config.model.depth, run.config.train.schedule.warmup


def _notes(folder: Path) -> list[str]:
    request = read_request(folder, StabilityRequest)
    notes = unfinished(folder, least=len(request.lines()) * len(request.lrs) * request.seeds)
    open_ = sum(bool(rates) for rates in next_rates(request, _judged(request, folder)).values())
    if not notes and open_:
        notes.append(f"{str(folder)!r} is not finished: the edges of {open_} lines are not bracketed as closely as asked; "
                     "run its command again to go on.")  # fmt: skip
    return notes
