"""The stages: a folder of an older demo is left alone, a fault is planted in one gain, what was trained is read."""

import pytest
import torch

from normlab.errors import InputError
from normlab.experiments.demo import page, stages
from normlab.experiments.demo.settings import Fault, settings
from normlab.experiments.runs.records import LayerRecord, TrainRecord, ValidationRecord
from normlab.experiments.runs.tail import LogTail
from normlab.model import Transformer, TransformerConfig

TINY = settings(schemes=("pre_norm",), depth=2, dim=16, steps=4)


def model(scheme="pre_norm"):
    return Transformer(TransformerConfig(vocab_size=11, dim=8, depth=4, heads=2, scheme=scheme))


def test_one_gain_is_multiplied():
    built, whole = model(), model()
    stages.plant(built, Fault(layer=2, factor=5.0))
    changed = [
        name
        for (name, a), b in zip(built.scheme.named_parameters(), whole.scheme.parameters(), strict=True)
        if not torch.equal(a, b)
    ]
    assert changed == ["pre.4.weight"], "the norm before the attention of layer 2, counted from 0"
    assert torch.equal(built.scheme.pre[4].weight, torch.full((8,), 5.0))
    with pytest.raises(InputError, match="no norm gain"):
        stages.plant(model("post_norm"), Fault(layer=1))


def test_an_older_demo_is_left_alone(tmp_path):
    assert stages.training_folder(TINY.training, tmp_path).name == "training"
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "sweep.json").write_text("{}")
    assert stages.training_folder(TINY.training, tmp_path).name == "training-2"


def test_nothing_trained_nothing_planted(tmp_path):
    assert stages.trained(TINY.training, tmp_path) == ()
    assert stages.plant_and_find(Fault(), (), tmp_path) is None


def test_each_scheme_is_trained_twice_and_only_the_warm_up_differs():
    arms = stages.arms(TINY.training, 4)
    assert len(arms) == 6
    for scheme in ("pre_norm", "post_norm", "block_attn_res"):
        plain, warm = (arms[f"{scheme}-l2-lr0.01-s0{end}"] for end in ("", "-warmup"))
        assert (plain.train.schedule.warmup, warm.train.schedule.warmup) == (0, 2)
        without = warm.train.schedule.replace(warmup=0)
        assert warm.replace(train=warm.train.replace(schedule=without)) == plain
    model = arms["pre_norm-l2-lr0.01-s0"].model
    assert all(config.model.replace(scheme="pre_norm") == model for config in arms.values()), "one start"


def ended(name, loss, shares=(0.9, 0.1)):
    config = stages.arms(TINY.training, 4)[f"{name.partition('-')[0]}-l2-lr0.01-s0{'-warmup' if '-' in name else ''}"]
    log = LogTail(None, training=[TrainRecord(4, loss, 1.0)], validation=[ValidationRecord(4, loss)])
    log.layers = [LayerRecord(step=4, gradient_share=list(shares))]
    return stages.Trained(None, config, log, 3.3)


def test_what_is_said_of_the_runs_ranks_nothing():
    losses = {
        "pre_norm": 2.41,
        "pre_norm-warm": 2.62,
        "post_norm": 3.36,
        "post_norm-warm": 2.87,
        "block_attn_res": 2.53,
    }
    said = page.learned([ended(name, loss) for name, loss in losses.items()])
    assert said == [
        "One learning rate for all and one random seed: an illustration, not a comparison.",
        "After 4 steps pre_norm (with a warm-up and without), post_norm (with a warm-up), block_attn_res (without a warm-up) "
        "predicted better than a model that ignores the context (3.30 nats).",
        "After 4 steps post_norm (without a warm-up) predicted no better than a model that ignores the context.",
        "At the end of post_norm layer 1 of 2 has 90 % of the gradient, layer 1 has 90 %.",
    ]
    other = dict(zip(losses, (2.62, 2.41, 3.40, 2.53, 2.87), strict=True))
    assert page.learned([ended(name, loss) for name, loss in other.items()]) == said, (
        "no loss and no order of losses in it"
    )


def test_a_run_that_was_stopped_is_not_judged():
    run = ended("post_norm", 5.0)
    run.log.training[:] = [TrainRecord(2, 5.0, 1.0)]
    assert page.learned([run]) == []
