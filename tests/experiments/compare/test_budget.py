"""A time budget becomes steps: phases one after the other, on the workers there are."""

import pytest

from normlab.errors import ConfigError
from normlab.experiments.compare import budget as module
from normlab.experiments.compare import experiment
from normlab.experiments.compare.budget import settle_steps
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.shapes import seconds
from normlab.experiments.sweep import read_sweep
from tests.experiments.compare.requests import request
from tests.experiments.tiny import Here, sweep_of


def times(found=None):
    return lambda: STEP if found is None else found


def test_budgets():
    assert [seconds(t) for t in ("90", "90s", "10m", "1.5h")] == [90, 90, 600, 5400]
    with pytest.raises(ConfigError, match="written like 90s, 10m or 2h"):
        seconds("ten minutes")
    with pytest.raises(ConfigError, match="less than one step of 4 x 8 = 32 tokens"):
        settle_steps(request(tokens=31), times(), workers=1)
    with pytest.raises(ConfigError, match="either tokens"):
        request(budget="1m")


STEP = {("pre_norm", 2): 0.25, ("block_attn_res", 2): 0.5}  # seconds


def plain(monkeypatch):
    """Nothing but steps takes time: walls can be counted by hand."""
    for name, value in {"START": 0.0, "RUN": 0.0, "FORWARD": 0.0, "REPEATS": -1, "PARALLEL": 1.0}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.timing, "ROUNDS", -1)


@pytest.mark.parametrize(
    ("workers", "per_step"),
    [
        (1, 4 * 0.25 + 4 * 0.5),  # two rates, one wider, one more seed: four cells of each scheme
        (2, (0.25 + 0.5) + 0.5 + 0.5),  # a short and a long one each, then one each, twice
        (8, 3 * 0.5),  # a phase takes as long as its longest cell
        (64, 3 * 0.5),
    ],
)
def test_phases_come_one_after_the_other(workers, per_step, monkeypatch):
    plain(monkeypatch)
    config = request(tokens=None, budget="2m")
    assert module.total_seconds(config, STEP, 10, workers=workers) == pytest.approx(10 * per_step)
    assert settle_steps(config, times(), workers=workers) == int(120 / per_step)


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_a_budget_is_kept_with_any_number_of_workers(workers):
    for changes in ({}, {"measure": None}, {"seeds": 30}, {"lrs": (1e-3,)}, {"extend": 0, "seeds": 1}):
        config = request(tokens=None, budget="10m", **changes)
        steps = settle_steps(config, times(), workers=workers)
        # Sizes that suit the length of the runs have a least: a few steps do not make measuring free.
        now, more = (module.total_seconds(config, STEP, n, workers=workers) for n in (steps, steps + 1))
        assert now <= 600 < more
        phases = 2 if config.seeds > 1 else 1
        assert now >= module.START + phases * steps * 0.5  # no number of workers makes one cell faster


def test_workers_start_once(monkeypatch):
    plain(monkeypatch)
    monkeypatch.setattr(module, "START", 7.0)
    wall = {n: module.total_seconds(request(), STEP, 10, workers=n) for n in (1, 2, 8)}
    assert wall == pytest.approx({1: 37, 2: 7 + 17.5, 8: 7 + 15})
    # More seeds than rates: four more workers start with the second phase, and the first four take 2.5 + 5 + 5 meanwhile.
    assert module.total_seconds(request(seeds=9, extend=0), STEP, 10, workers=8) == pytest.approx(7 + 5 + 12.5)


@pytest.mark.parametrize("budget", ["0.1s", "3s"])
def test_a_budget_that_is_too_small_says_what_it_takes(budget):
    quick = times(dict.fromkeys(STEP, 1e-3))
    with pytest.raises(
        ConfigError, match=rf"budget: {budget} is too small for one step of each of the 8 runs .* about \d+ s here"
    ) as caught:
        settle_steps(request(tokens=None, budget=budget), quick, workers=64)
    assert "about 0 s" not in str(caught.value)
    assert settle_steps(request(tokens=None, budget="7s"), quick, workers=64) > 1


def test_steps_are_timed_on_the_device_of_the_sweep(monkeypatch, tmp_path):
    class Elsewhere(Here):
        device, at_once = "meta", 3

    seen, build = [], RunConfig.build
    monkeypatch.setattr(RunConfig, "build", lambda run, device="cpu": seen.append(device) or build(run, device="cpu"))
    monkeypatch.setattr(module, "total_seconds", lambda *a, workers: seen.append(workers) or a[2] * 10.0)
    asked = request(tokens=None, budget="100s", lrs=(1e-3,), seeds=1)
    experiment.EXPERIMENT.carry_out(asked, sweep_of(tmp_path, Elsewhere()))
    assert {"meta", 3} <= set(seen)
    assert read_sweep(tmp_path).settled == {"steps": 10}


def test_a_machine_twice_as_slow_gets_fewer_steps():
    asked = request(tokens=None, budget="2m")
    fast, slow = (settle_steps(asked, times({k: f * v for k, v in STEP.items()}), workers=1) for f in (0.01, 0.02))
    assert fast > slow > 0.4 * fast


def test_steps_are_really_timed():
    """On the clock of this machine, whatever else runs on it: positive, and the deeper one is not free."""
    asked = request(depths=(1, 6), schemes=("pre_norm",))
    runs = {
        (s, d): experiment.run_of(asked, (s, d), lr=1e-3, seed=0, steps=10) for s in asked.schemes for d in asked.depths
    }
    found = module.time_steps(runs)
    assert set(found) == set(runs)
    assert all(value > 0 for value in found.values())
