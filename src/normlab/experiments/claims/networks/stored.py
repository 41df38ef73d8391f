"""The stored maps of learning rates (docs/results): runs of earlier sweeps, read from their tables."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from normlab.errors import InputError
from normlab.experiments.stability.analyse import top

RESULTS = Path(__file__).resolve().parents[5] / "docs" / "results"


@dataclass(frozen=True)
class StoredRun:
    """A row of cells.csv, as far as claims need it."""

    scheme: str
    depth: int
    lr: float
    warmup: int
    seed: int
    loss: float
    verdict: str
    gradient_spikes: int
    seconds: float

    @property
    def learned(self) -> bool:
        return self.verdict == "stable"


def stored_runs(name: str, *, scheme: str, warmup: int) -> list[StoredRun]:
    """The runs of one line of a map."""
    path = RESULTS / name / "cells.csv"
    if not path.exists():
        raise InputError(f"the stored map {str(path)!r} is not there; measure this claim in a clone of the repository")
    with open(path, newline="", encoding="utf-8") as file:
        runs = [_run(*(row[field.name] for field in fields(StoredRun))) for row in csv.DictReader(file)]
    return [run for run in runs if run.scheme == scheme and run.warmup == warmup]


def _run(scheme: str, depth: str, lr: str, warmup: str, seed: str, loss: str, *rest: str) -> StoredRun:
    verdict, spikes, seconds = rest
    sizes = (int(depth), float(lr), int(warmup), int(seed), float(loss or "nan"))
    return StoredRun(scheme, *sizes, verdict, int(spikes), float(seconds))


def by_seed(runs: list[StoredRun]) -> dict[int, list[StoredRun]]:
    return {seed: [run for run in runs if run.seed == seed] for seed in sorted({run.seed for run in runs})}


def best_loss(runs: list[StoredRun]) -> float:
    """Over rates, of the runs that stayed stable (a flat one is stable and learned nothing)."""
    return min(run.loss for run in runs if run.verdict in ("stable", "flat"))


def highest_rate(runs: list[StoredRun]) -> float:
    """The highest rate at which a run ends below the loss of single bytes; nan where none does."""
    found, _ = top({run.lr: run.learned for run in runs})
    return float("nan") if found is None else found
