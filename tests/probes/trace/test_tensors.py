"""Tensors inside calls, and the distance in units of the change."""

import math

import pytest
import torch

from normlab.errors import UnsupportedError
from normlab.probes.trace.tensors import find_weights, first_tensor, mismatch


def test_a_wrong_branch_that_adds_little_does_not_pass():
    stream = torch.full((4,), 100.0)
    change = torch.full((4,), 0.5)
    assert mismatch(stream + change, stream + change, change) == 0
    assert mismatch(stream, stream + change, change) == pytest.approx(1)
    assert mismatch(stream - change, stream + change, change) == pytest.approx(2)
    # Without any change the unit is a thousandth of the stream: rounding is not divided by zero.
    assert mismatch(stream + 0.1, stream, 0 * stream) == pytest.approx(1, rel=1e-4)


def test_other_shapes_of_one_size_are_compared_and_other_sizes_are_infinitely_far():
    x = torch.arange(6.0)
    assert mismatch(x.reshape(2, 3), x, x) == 0
    assert mismatch(x[:3], x, x) == math.inf
    assert mismatch(x * math.nan, x, x) == 0  # NaN weights are a verdict, not a wrong layout


def test_the_first_floating_tensor_is_found_at_any_depth():
    x = torch.zeros(2)
    assert first_tensor(((torch.arange(3),), {"a": [None, x], "b": x + 1})) is x
    with pytest.raises(UnsupportedError, match="no floating-point tensor"):
        first_tensor((torch.arange(3), "text"))


def test_weights_are_rows_that_sum_to_one_not_merely_of_that_shape():
    bias = torch.randn(1, 2, 3, 3)
    weights = bias.softmax(-1)
    assert torch.equal(find_weights((bias[0], bias, weights)), weights)
    assert find_weights((bias, weights[0])) is None
