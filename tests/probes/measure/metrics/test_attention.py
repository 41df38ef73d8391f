"""Numbers of attention weights that no permutation of heads or keys may change."""

import math

import pytest
import torch

from normlab.probes.measure.metrics.attention import max_weight, normalised_entropy, sink, visible_keys


def test_entropy_of_two_equal_keys_among_eight():
    weights = torch.zeros(1, 2, 4, 8)
    weights[:, 0], weights[:, 1, :, :2] = 1 / 8, 1 / 2
    assert normalised_entropy(weights)[0].tolist() == pytest.approx([1, math.log(2) / math.log(8)], abs=1e-6)


def test_queries_that_see_one_key_are_no_evidence():
    assert torch.isnan(normalised_entropy(torch.eye(3)[None, None])).all()


def test_keys_and_heads_may_be_permuted():
    weights = torch.randn(2, 3, 6, 10).softmax(-1)
    keys = torch.randperm(10)
    torch.testing.assert_close(normalised_entropy(weights[..., keys]), normalised_entropy(weights))
    torch.testing.assert_close(max_weight(weights[:, [2, 0, 1]]), max_weight(weights)[:, [2, 0, 1]])
    mass, position = sink(weights)
    moved, place = sink(weights[..., keys])
    torch.testing.assert_close(moved, mass)
    assert torch.equal(keys[place], position)
    assert visible_keys(weights).tolist() == [10] * 6


def test_a_causal_sink_is_a_key_that_all_late_queries_see():
    weights = torch.eye(8)[None, None]  # each query attends to itself
    mass, position = sink(weights)
    assert float(mass) == 0
    assert int(position) < 4
