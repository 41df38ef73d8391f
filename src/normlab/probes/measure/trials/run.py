"""Undo an accident on trial, and see whether the loss falls: chosen on some windows of the text, tested on others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import torch

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.gradients import PullRow
from normlab.probes.measure.outputs import OutputReading
from normlab.probes.measure.table import Real, Sparse
from normlab.probes.measure.trials.changes import NotPossible, Trial
from normlab.probes.measure.trials.exchanges import channels, exchanged, last_norms, routed, tokens
from normlab.probes.measure.trials.repair import RepairReading
from normlab.probes.measure.trials.single import SHALLOW, odd_gains, single_layers
from normlab.probes.measure.trials.sizes import sizes
from normlab.probes.measure.trials.whole import whole_model
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.stats import standard_error, t_quantile

WRECKED = 0.15  # nats
SCREENED = 12  # trials that gain on the first window and are measured on all windows to choose on
LEAST = 4  # windows that can be split: a standard error needs two
CARRIED = 4  # of these, the best, which are tested on other windows: each more makes the test stricter


@dataclass(frozen=True)
class UndoneReading(Sparse):
    """The model while the change is in place: is it healthy then?"""

    output: OutputReading | None
    repair: RepairReading | None


@dataclass(frozen=True)
class TrialRow(Sparse):
    """The loss with one thing changed, over windows of the text; `error` is the standard error of `change`."""

    what: str
    subject: str
    layers: tuple[int, ...]
    loss: Real
    change: Real
    error: Real
    batches: int
    falls: int | None = None  # windows whose loss falls
    carried: int | None = None  # trials that were tested on these windows; None: chosen and measured on the same ones
    undone: UndoneReading | None = None

    @property
    def reach(self) -> float | None:
        """Half of the 95 % interval of `change`, Student's t, by Bonferroni for the trials carried over.

        None without a test: there were too few windows to choose on some and test on others.
        """
        if self.carried is None or self.batches < 2:
            return None
        return t_quantile(1 - 0.025 / self.carried, self.batches - 1) * self.error


def halves(windows: Sequence[object]) -> tuple[Sequence[object], Sequence[object]]:
    """Windows to choose on and windows to test on; none to test on where there are too few."""
    return (windows[::2], windows[1::2]) if len(windows) >= LEAST else (windows, ())


def catalogue(
    layout: Layout, chosen: Sequence[object], loss: Loss, *, suspects: Sequence[int], pulls: Sequence[PullRow]
) -> Iterator[Trial]:
    """All trials; those that depend on the text look at the windows to choose on alone."""
    return chain(
        whole_model(layout),
        sizes(layout, pulls),
        odd_gains(layout),
        last_norms(layout),
        single_layers(layout, suspects),
        exchanged(layout, _pairs(len(layout.layers), suspects)),
        channels(layout, suspects),
        routed(layout, suspects),
        tokens(layout, chosen[0], chosen, loss),
    )


@torch.no_grad()
def run_trials(
    layout: Layout,
    trials: Iterable[Trial],
    chosen: Sequence[object],
    tested: Sequence[object],
    loss: Loss,
    *,
    least: float = 0.004,
    glance: object | None = None,
    examine: Callable[[], UndoneReading] | None = None,
) -> tuple[TrialRow, ...]:
    """The best of `trials` on the `chosen` windows, by `least` nats or more, measured on the `tested` ones.

    Without `tested` windows they are measured on the chosen ones, and nothing is tested. `glance`: a few tokens; what
    wrecks these is not tried on more. `examine` is called while a change that surely lowers the loss is in place.
    """

    def measured(batch: object) -> float:
        with slow_path():
            return float(loss(layout.model, batch))

    def mean(batches: Sequence[object]) -> float:
        return statistics.fmean(map(measured, batches))

    start = measured(chosen[0])
    wrecked = math.inf if glance is None else measured(glance) + WRECKED
    promising: list[tuple[float, Trial]] = []
    gained = {""}
    for trial in trials:
        if trial.milder not in gained:
            continue
        try:
            with trial.changed():
                value = math.inf if glance is not None and measured(glance) > wrecked else measured(chosen[0])
        except NotPossible:
            continue
        if value < start:
            gained.add(trial.what)
        if value < start - least:
            promising.append((value, trial))
    promising = sorted(promising, key=_loss)[:SCREENED]
    if len(chosen) > 1 and promising:
        start = mean(chosen)
        again = []
        for _, trial in promising:
            with trial.changed():
                again.append((mean(chosen), trial))
        promising = sorted(((value, trial) for value, trial in again if value < start - least), key=_loss)
    carried = promising[:CARRIED]
    windows = tested or chosen
    before = [measured(window) for window in windows] if carried else []
    rows = []
    for _, trial in carried:
        with trial.changed():
            changes = [measured(window) - old for window, old in zip(windows, before, strict=True)]
            row = TrialRow(
                what=trial.what,
                subject=trial.subject,
                layers=trial.layers,
                loss=statistics.fmean(before),
                change=statistics.fmean(changes),
                error=standard_error(changes) if len(changes) > 1 else 0.0,
                batches=len(changes),
                falls=sum(change < 0 for change in changes),
                carried=len(carried) if tested else None,
            )
            if examine is not None and row.reach is not None and row.change + row.reach < 0:
                row = replace(row, undone=examine())
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: row.change))


def _loss(item: tuple[float, Trial]) -> float:
    return item[0]


def _pairs(depth: int, suspects: Sequence[int]) -> list[tuple[int, int]]:
    """Every two layers of a shallow model, neighbours in a deep one; one of them is suspected."""
    near = depth if depth <= SHALLOW else 1
    return [(i, j) for i, j in combinations(range(depth), 2) if j - i <= near and {i, j} & set(suspects)]
