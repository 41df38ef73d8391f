"""A time budget becomes steps: phases one after the other, on the workers there are."""

import pytest

from normlab.errors import ConfigError
from normlab.experiments.compare import budget as module
from normlab.experiments.compare import experiment
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.budget import ENOUGH, settle_size
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.shapes import seconds
from normlab.experiments.sweep import read_sweep
from tests.experiments.compare.requests import request
from tests.experiments.tiny import Here, sweep_of


def settle_steps(asked, known, *, workers, parameters=1):
    """So few parameters that every length is enough: seeds stay."""
    return settle_size(asked, known, lambda: parameters, workers=workers)["steps"]


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


STEP = {Arm("pre_norm", 2): 0.25, Arm("block_attn_res", 2): 0.5}  # seconds


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
    assert read_sweep(tmp_path).settled == {"steps": 10, "seeds": 1}


def test_a_machine_twice_as_slow_gets_fewer_steps():
    asked = request(tokens=None, budget="2m")
    fast, slow = (settle_steps(asked, times({k: f * v for k, v in STEP.items()}), workers=1) for f in (0.01, 0.02))
    assert fast > slow > 0.4 * fast


def test_steps_are_really_timed():
    """On the clock of this machine, whatever else runs on it: positive, and the deeper one is not free."""
    asked = request(depths=(1, 6), schemes=("pre_norm",))
    runs = {arm: experiment.run_of(asked, arm, lr=1e-3, seed=0, steps=10) for arm in asked.arms()}
    found = module.time_steps(runs)
    assert set(found) == set(runs)
    assert all(value > 0 for value in found.values())


# -- seeds ---------------------------------------------------------------------------------------------------------------
def unasked(**changes):
    """A request that says nothing about seeds."""
    values = {
        key: value for key, value in request().to_dict().items() if key not in ("seeds", "fewest_seeds", "tokens")
    }
    return CompareRequest.from_dict({**values, "lrs": [1e-3], **changes})


def test_seeds_fall_until_runs_are_long_enough_and_no_further_than_two(monkeypatch):
    """A seed of both schemes takes 0.75 s a step: 5 seeds of 60 steps fit into 225 s, 2 of 150."""
    plain(monkeypatch)
    assert unasked(budget="225s").seeds == 5

    def size(tokens_a_parameter):
        """For a baseline so large that 5 seeds leave it that many."""
        parameters = 60 * 32 / tokens_a_parameter
        return settle_size(unasked(budget="225s"), times(), lambda: parameters, workers=1)

    assert size(ENOUGH) == {"steps": 60, "seeds": 5}
    assert size(0.9 * ENOUGH) == {"steps": 75, "seeds": 4}
    assert size(0.7 * ENOUGH) == {"steps": 100, "seeds": 3}
    assert size(0.5 * ENOUGH) == {"steps": 150, "seeds": 2}
    assert size(0.01 * ENOUGH) == {"steps": 150, "seeds": 2}  # never one


def test_seeds_that_are_asked_for_are_all_run(monkeypatch):
    plain(monkeypatch)
    asked = unasked(budget="225s", seeds=5)
    assert settle_size(asked, times(), lambda: 10**9, workers=1) == {"steps": 60, "seeds": 5}
    assert settle_size(unasked(tokens=3200), times(), lambda: 10**9, workers=1) == {"steps": 100}  # no time: no reason


def test_what_was_decided_stays_until_more_is_asked_for():
    decided = {"steps": 150, "seeds": 2}
    assert unasked(budget="225s").settled(decided).seeds == 2
    assert unasked(budget="225s", seeds=5).settled(decided).seeds == 5
    assert unasked(budget="225s").settled({"steps": 150}).seeds == 5  # tokens were asked for, or an older folder
    assert unasked(tokens=320, seeds=3).settled({}).seeds == 3


def test_controls_count_as_runs(monkeypatch):
    """Within the budget: a comparison by recipes has fewer steps, since its controls take time too."""
    plain(monkeypatch)
    values = {"schemes": ("pre_norm", "peri_norm", "post_norm", "b2t", "keel"), "tokens": None, "budget": "2m"}
    fair, authors = request(**values), request(**values, recipe="authors")
    assert (len(fair.arms()), len(authors.arms())) == (5, 8)  # of peri_norm, of post_norm and b2t, and the fair one
    assert authors.most_runs() / fair.most_runs() == 8 / 5

    def steps(asked):
        known = dict.fromkeys(asked.arms(), 0.25)
        found = settle_size(asked, lambda: known, lambda: 1, workers=1)["steps"]
        assert module.total_seconds(asked, known, found, workers=1) <= 120
        return found

    assert steps(authors) < steps(fair)
