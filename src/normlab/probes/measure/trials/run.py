"""Undo an accident on trial, and see whether the loss falls. Most trials are given up after one batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import torch

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.table import Real, Sparse
from normlab.probes.measure.trials.changes import NotPossible, Trial
from normlab.probes.measure.trials.exchanges import channels, exchanged, last_norms, routed, tokens
from normlab.probes.measure.trials.single import SHALLOW, odd_gains, single_layers
from normlab.probes.measure.trials.sizes import sizes
from normlab.probes.measure.trials.whole import whole_model
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.stats import standard_error

WRECKED = 0.15  # nats
MOST = 6  # trials that are measured on all batches: in a broken model many changes gain


@dataclass(frozen=True)
class TrialRow(Sparse):
    """The loss with one thing changed, over several batches; `error` is the standard error of `change`."""

    what: str
    subject: str
    layers: tuple[int, ...]
    loss: Real
    change: Real
    error: Real
    batches: int
    falls: int | None = None  # batches whose loss falls


@torch.no_grad()
def run_trials(
    layout: Layout,
    first: object,
    batches: Sequence[object],
    loss: Loss,
    *,
    suspects: Sequence[int] = (),
    pulls: Sequence[PullRow] = (),
    least: float = 0.004,
    glance: object | None = None,
) -> tuple[TrialRow, ...]:
    """The trials that lower the loss of the `first` batch most, and by `least` nats or more, measured on `batches`.

    `glance`: a few tokens of it. What wrecks these is not tried on all.
    """

    def measured(batch: object) -> float:
        with slow_path():
            return float(loss(layout.model, batch))

    start, before = measured(first), [measured(batch) for batch in batches]
    wrecked = math.inf if glance is None else measured(glance) + WRECKED
    promising: list[tuple[float, Trial]] = []
    gained = {""}
    for trial in chain(
        whole_model(layout),
        sizes(layout, pulls),
        odd_gains(layout),
        last_norms(layout),
        single_layers(layout, suspects),
        exchanged(layout, _pairs(len(layout.layers), suspects)),
        channels(layout, suspects),
        routed(layout, suspects),
        tokens(layout, first, batches, loss),
    ):
        if trial.milder not in gained:
            continue
        try:
            with trial.changed():
                value = math.inf if glance is not None and measured(glance) > wrecked else measured(first)
        except NotPossible:
            continue
        if value < start:
            gained.add(trial.what)
        if value < start - least:
            promising.append((value, trial))
    rows = []
    for _, trial in sorted(promising, key=lambda pair: pair[0])[:MOST]:
        with trial.changed():
            after = [measured(batch) for batch in batches]
        changes = [new - old for new, old in zip(after, before, strict=True)]
        error = standard_error(changes) if len(changes) > 1 else 0.0
        mean = statistics.fmean(changes)
        start_loss, count = statistics.fmean(before), len(changes)
        rows.append(
            TrialRow(
                trial.what, trial.subject, trial.layers, start_loss, mean, error, count, sum(c < 0 for c in changes)
            )
        )
    return tuple(sorted(rows, key=lambda row: row.change))


def _pairs(depth: int, suspects: Sequence[int]) -> list[tuple[int, int]]:
    """Every two layers of a shallow model, neighbours in a deep one; one of them is suspected."""
    near = depth if depth <= SHALLOW else 1
    return [(i, j) for i, j in combinations(range(depth), 2) if j - i <= near and {i, j} & set(suspects)]
