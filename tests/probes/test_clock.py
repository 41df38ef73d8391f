"""A budget of seconds: what is optional does not begin, and the report says so."""

import pytest
import torch

from normlab.probes import clock as clocks
from normlab.probes.clock import Clock
from normlab.probes.diagnose import diagnose
from tests.probes.zoo import build, inputs


class Ticks:
    """A clock that goes on by one second each time it is read."""

    def __init__(self, step=1.0):
        self.now, self.step = 0.0, step

    def perf_counter(self):
        self.now += self.step
        return self.now


def test_without_a_budget_everything_may_begin():
    clock = Clock()
    assert clock.allows("skips")
    assert clock.note() == []


def test_what_does_not_begin_is_named(monkeypatch):
    monkeypatch.setattr(clocks, "time", Ticks())
    clock = Clock(budget=2.5)
    assert clock.allows("attention")
    clock.passed()
    assert not clock.allows("gradients")
    assert clock.note() == ["the budget of 2.5 s was used up, so these were left out: gradients"]


def test_stages_are_timed_and_told(monkeypatch):
    monkeypatch.setattr(clocks, "time", Ticks())
    told = []
    clock = Clock(lambda *what: told.append(what))
    clock("one")
    clock("two", 1, 4)
    clock("two", 2, 4)
    assert told == [("one", 0, 0), ("two", 1, 4), ("two", 2, 4)]
    assert clock.stages() == {"one": 1.0, "two": 1.0}


@pytest.mark.parametrize(("step", "loss", "skips"), [(0.0, True, True), (1.0, False, False)])
def test_a_diagnosis_within_a_budget(monkeypatch, step, loss, skips):
    monkeypatch.setattr(clocks, "time", Ticks(step))
    found = diagnose(build("llama"), [inputs("llama", batch=4, tokens=32)], lengths=(8, 16), max_seconds=3)
    assert (found.loss is not None) is loss
    assert (found.causal is not None) is skips
    assert any("was used up" in note for note in found.notes) is not loss
    assert len(found.layers) == 3  # what everything rests on is always measured
    assert found.layers[0].norm > 0


@pytest.mark.parametrize(("stop", "batches"), [(5, None), (7, 2)])
def test_skips_that_the_budget_ends_are_not_judged(monkeypatch, stop, batches):
    """Two whole batches make an error bar; fewer say nothing."""
    ticks = Ticks(0.0)
    monkeypatch.setattr(clocks, "time", ticks)

    def progress(stage, done, total):
        if stage == "skipping layers" and done >= stop:
            ticks.now = 100.0

    batch = [torch.randint(5, 97, (4, 32))]
    found = diagnose(build("llama"), batch, lengths=(8,), max_seconds=50, progress=progress, skip_tokens=128)
    assert (found.causal.batches if found.causal else None) == batches
    assert "skipping layers on" in found.notes[-1]
