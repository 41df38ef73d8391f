"""The stages: a folder of an older demo is left alone, a fault is planted in one gain, what was trained is read."""

import pytest
import torch

from normlab.errors import InputError
from normlab.experiments.demo import stages
from normlab.experiments.demo.settings import Fault, settings
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
