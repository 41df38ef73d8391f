"""Roles from values alone: names do not matter, and what no sum explains is not guessed."""

import pytest
import torch
from torch import nn

from normlab.probes.trace.infer import infer_roles
from tests.probes.zoo import Homemade


def inferred(layout):
    model = Homemade(layout).eval()
    tokens = torch.randint(0, 97, (2, 12))
    return infer_roles(model.blocks[1], lambda: model(tokens)), model


@pytest.mark.parametrize(
    ("layout", "attention", "ffn"),
    [
        ("pre", {"added": "mixer", "pre": "first"}, {"added": "wide", "pre": "second"}),
        ("post", {"added": "mixer", "out": "first"}, {"added": "wide", "out": "second"}),
        ("peri", {"added": "third", "core": "mixer", "pre": "first"}, {"added": "fourth", "core": "wide"}),
        ("res", {"added": "third", "core": "mixer", "pre": ""}, {"added": "fourth", "core": "wide", "pre": ""}),
        ("parallel", {"added": "mixer", "parallel": False}, {"added": "wide", "parallel": True}),
    ],
)
def test_each_module_gets_its_role(layout, attention, ffn):
    row, _ = inferred(layout)
    assert row.inferred
    assert [branch.kind for branch in row.branches] == ["attention", "ffn"]
    for branch, expected in zip(row.branches, (attention, ffn), strict=True):
        assert {name: getattr(branch, name) for name in expected} == expected


def test_what_no_sum_explains_is_none_and_leaves_no_hook():
    row, model = inferred("scaled")
    assert row is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_layer_that_is_not_called_is_none():
    assert infer_roles(nn.Linear(3, 3), lambda: None) is None
