"""The measures of networks on tiny ones: the start against itself, and effects that were planted."""

import math

import pytest
import torch

from normlab.experiments.claims.measured.networks import trained as measured
from normlab.experiments.claims.networks import models
from normlab.experiments.claims.networks.models import FULL, PLANS, PRE, StartAndEnd, load_trained, model_config
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.trainer import run_folder
from normlab.model import Transformer
from normlab.training import Schedule


def fresh(scheme=PRE, seed=0):
    torch.manual_seed(seed)
    return Transformer(model_config(scheme)).eval()


def pair(start, end):
    return StartAndEnd(PRE, 0, start, end, None)


def test_net_of_step_0_a_start_has_nothing():
    model = fresh()
    assert measured.growth(pair(model, model)) == 0.0
    assert measured.periodic(pair(model, model)) == 0.0


@torch.no_grad()
def louder(model, by):
    """Multiply what layer l puts out by by(l)."""
    for index, branch in enumerate(model.branches):
        (branch.out if index % 2 == 0 else branch.down).weight.mul_(by(index // 2))
    return model


def test_a_planted_growth_is_found():
    """Outputs times e^(a l): branches read normalised states, so log outputs gain that slope (nearly: directions change)."""
    planted = measured.growth(pair(fresh(), louder(fresh(), lambda l: math.exp(0.1 * l))))
    assert planted == pytest.approx(0.1 * 11, abs=0.25)


def test_a_planted_period_is_found():
    planted = measured.periodic(pair(fresh(), louder(fresh(), lambda l: 2.0 if l % measured.PERIOD == 0 else 1.0)))
    assert planted > 0.5


def test_a_layer_that_is_the_whole_stream_has_the_largest_share():
    plain = measured.largest_share(fresh())
    assert measured.largest_share(louder(fresh(), lambda l: 50.0 if l == 3 else 1.0)) > max(0.7, plain)


def test_quarters():
    assert measured.first_over_last_quarter([4.0, 4.0, 4.0] + [1.0] * 6 + [2.0, 2.0, 2.0]) == 2.0


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_plans_hold_runs_with_names_of_their_own(plan):
    found = PLANS[plan]()
    assert len(found) >= 10
    assert len({config.to_json() for config in found.values()}) == len(found)


def test_a_run_comes_back_as_start_and_end(tmp_path, monkeypatch):
    """Trained for three steps: the start is the config's, the end is the checkpoint's and the held-out loss agrees."""
    config = next(iter(PLANS["keys"]().values()))
    brief = config.replace(
        train=config.train.replace(steps=3, schedule=Schedule(kind="wsd", warmup=1), checkpoint_every=3)
    )
    monkeypatch.setitem(models.PLANS, "brief", lambda: {"one": brief})
    (found,) = models.pairs(tmp_path, "brief", FULL, seeds=(0,))
    assert found.run.summary.step == 3
    (again,) = run_folder(prepare(tmp_path / "brief" / "one", brief))
    assert again.summary == found.run.summary
    before, after = found.start.state_dict(), found.end.state_dict()
    assert set(before) == set(after)
    assert any(not torch.equal(before[key], after[key]) for key in before)
    torch.manual_seed(brief.train.seed)
    assert torch.equal(before["embedding.weight"], Transformer(brief.model).state_dict()["embedding.weight"])
    assert torch.equal(load_trained(found.run).state_dict()["embedding.weight"], after["embedding.weight"])
    assert list(models.pairs(tmp_path, "brief", FULL, seeds=(7,))) == []
