"""Roles from values alone: names do not matter, and what no sum explains is not guessed."""

import pytest
import torch
from torch import nn

from normlab.probes.trace.infer import infer_roles
from tests.probes.zoo import Homemade


def inferred(layout):
    model = Homemade(layout).eval()
    tokens = torch.randint(0, 97, (2, 12))
    return infer_roles(model, [model.blocks[1]], lambda: model(tokens))[id(model.blocks[1])], model


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


def test_factors_on_skip_and_branch_are_numbers():
    row, model = inferred("scaled")
    (branch,) = row.branches
    assert (branch.skip, branch.scale, branch.pre) == (0.7, 1.3, "first")
    assert row.placement == "pre_norm, scaled"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_is_no_sum_with_the_stream_says_so():
    model = nn.Sequential(nn.Embedding(9, 8), nn.Sequential(nn.Linear(8, 8)))
    reason = infer_roles(model, [model[1]], lambda: model(torch.arange(6).reshape(2, 3)))[id(model[1])]
    assert "is no sum with its input" in reason


def test_a_layer_that_is_not_called_is_left_out():
    layer = nn.Linear(3, 3)
    assert infer_roles(layer, [layer], lambda: None) == {}
