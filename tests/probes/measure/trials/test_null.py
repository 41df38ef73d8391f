"""The best of 400 changes that do nothing on average accuses a model only if it is tested on the windows it was chosen on.

The real thing, with twenty trained models, is `python -m tests.probes.clinic.null`.
"""

from contextlib import contextmanager

import pytest
import torch

from normlab.probes.inputs.losses import Loss
from normlab.probes.judge.verdicts import LIMITS
from normlab.probes.measure.trials.changes import Trial
from normlab.probes.measure.trials.run import CARRIED, halves, run_trials

MODELS, CHANGES, WINDOWS = 60, 400, 8
NOISE = 0.1  # nats: how differently one change acts on two windows


class Sham:
    """A model whose loss on a window is 2 nats, and with change number i what a table says."""

    def __init__(self, seed: int, planted: float = 0.0) -> None:
        self.effects = NOISE * torch.randn(CHANGES, WINDOWS, generator=torch.Generator().manual_seed(seed))
        self.effects[0] += planted
        self.current: int | None = None
        self.model = None  # a layout has one

    def loss(self) -> Loss:
        return Loss(
            "table", lambda _, window: 2 + (0.0 if self.current is None else self.effects[self.current, window])
        )

    def trials(self):
        for number in range(CHANGES):

            @contextmanager
            def changed(number=number):
                self.current = number
                yield
                self.current = None

            yield Trial(str(number), "weights", (), changed)

    def accused(self, chosen, tested):
        rows = run_trials(self, self.trials(), chosen, tested, self.loss())
        return [row.what for row in rows if row.reach is not None and row.change + row.reach < -LIMITS.trial]


def count(chosen, tested):
    return sum(bool(Sham(seed).accused(chosen, tested)) for seed in range(MODELS))


@pytest.mark.parametrize("windows", [WINDOWS, 6])
def test_chance_accuses_one_model_in_twenty_at_most(windows):
    assert count(*halves(range(windows))) <= 0.05 * MODELS


def test_the_same_windows_for_both_would_accuse_more():
    assert count(range(WINDOWS), range(WINDOWS)) > 0.08 * MODELS


def test_a_planted_effect_is_found():
    assert sum("0" in Sham(seed, planted=-1.0).accused(*halves(range(WINDOWS))) for seed in range(20)) == 20


def test_too_few_windows_are_not_tested():
    chosen, tested = halves(range(3))
    assert (list(chosen), list(tested)) == ([0, 1, 2], [])
    sham = Sham(0, planted=-1.0)
    rows = run_trials(sham, sham.trials(), chosen, tested, sham.loss())
    assert rows[0].what == "0"
    assert [(row.carried, row.reach) for row in rows] == [(None, None)] * CARRIED
