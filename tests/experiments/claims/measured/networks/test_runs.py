"""Numbers of runs: when a loss is reached, what the stored maps say, and a spike that was planted."""

import math

import pytest

from normlab.experiments.claims.measured.networks.runs import steps_to
from normlab.experiments.claims.networks import models
from normlab.experiments.claims.networks.stored import StoredRun, best_loss, by_seed, highest_rate, stored_runs
from normlab.experiments.runs.records import ValidationRecord
from normlab.experiments.stability.analyse import gradient_spikes
from tests.experiments.claims.measured.trained.fits import fits_its_claims, judged


def line(*points):
    return [ValidationRecord(step, loss) for step, loss in points]


def test_steps_to_a_loss_lie_on_the_line_between_two_records():
    curve = line((100, 3.0), (200, 2.0), (300, 1.5))
    assert steps_to(curve, 2.5) == 150.0
    assert steps_to(curve, 2.0) == 200.0
    assert steps_to(curve, 1.6) == pytest.approx(280.0)
    assert steps_to(curve, 3.5) == 100.0
    assert math.isnan(steps_to(curve, 1.0))


def test_the_first_crossing_counts():
    assert steps_to(line((10, 3.0), (20, 1.0), (30, 4.0), (40, 1.0)), 2.0) == 15.0


def test_a_planted_delay_is_found():
    early, late = line((0, 4.0), (100, 2.0)), line((0, 4.0), (50, 4.0), (150, 2.0))
    assert steps_to(late, 3.0) == steps_to(early, 3.0) + 50


def run(lr, loss, verdict="stable"):
    return StoredRun("pre_norm", 12, lr, 0, 0, loss, verdict, 0, 1.0)


def test_a_line_of_rates():
    runs = [run(1e-3, 2.5), run(2e-3, 2.1), run(4e-3, 3.4, "flat"), run(8e-3, 1.0, "nan")]
    assert best_loss(runs) == 2.1
    assert highest_rate(runs) == 2e-3
    assert math.isnan(highest_rate([run(1e-3, 3.4, "flat")]))


def test_the_stored_map_says_what_its_page_says():
    """docs/results: Post-Norm gains 0.196 nats by 500 steps of warm-up, Pre-Norm none; rates of 0.0006 and 0.0096 learn."""
    best = {
        (scheme, warmup): [
            best_loss(runs) for runs in by_seed(stored_runs("stability-12", scheme=scheme, warmup=warmup)).values()
        ]
        for scheme in ("post_norm", "pre_norm")
        for warmup in (0, 500)
    }
    gains = {
        s: sum(a - b for a, b in zip(best[s, 0], best[s, 500], strict=True)) / 3 for s in ("post_norm", "pre_norm")
    }
    assert gains["post_norm"] == pytest.approx(0.196, abs=5e-4)
    assert gains["pre_norm"] == pytest.approx(-0.0155, abs=5e-4)
    for scheme, rate in (("post_norm", 6e-4), ("pre_norm", 9.6e-3)):
        lines = by_seed(stored_runs("stability-12", scheme=scheme, warmup=0)).values()
        assert [highest_rate(runs) for runs in lines] == [rate] * 3


def test_a_planted_spike_is_counted():
    norms = [1.0] * 40
    assert gradient_spikes(norms) == 0
    norms[30] = 4.5
    assert gradient_spikes(norms) == 1


@pytest.fixture
def brief(monkeypatch):
    """The same plans, two steps a run, shallow, with as few seeds as can be."""

    def cut(plan):
        def made():
            return {
                name: config.replace(
                    train=config.train.replace(steps=2, schedule=config.train.schedule.replace(warmup=min(1, w))),
                    model=config.model.replace(dim=8, depth=1),
                )
                for name, config in plan().items()
                if config.train.seed % 100 < 2
                for w in [config.train.schedule.warmup]
            }

        return made

    monkeypatch.setattr(models, "PLANS", {name: cut(plan) for name, plan in models.PLANS.items()})


@pytest.mark.parametrize("name", ["small-stability"])
def test_the_criteria_can_read_it(name, tmp_path, brief):
    assert judged(name, tmp_path)


@pytest.mark.parametrize("name", ["null-spikes-in-a-run-of-2-layers", "null-highest-rate-that-learns"])
def test_nulls(name, tmp_path, brief):
    fits_its_claims(name, tmp_path)
