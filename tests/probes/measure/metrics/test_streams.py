"""Several streams and their mixings."""

import math
from itertools import pairwise

import pytest
import torch

from normlab.probes.measure.metrics.streams import composite_gain, effective_sources, homogenisation, mixing_gain


def test_opposite_streams_have_cosine_minus_one_and_three_at_120_degrees_minus_a_half():
    pair = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
    assert float(homogenisation(pair)) == pytest.approx(-1)
    angles = [2 * math.pi * k / 3 for k in range(3)]
    star = torch.tensor([[math.cos(a), math.sin(a)] for a in angles])
    assert float(homogenisation(star)) == pytest.approx(-0.5, abs=1e-6)


def test_a_product_of_doubly_stochastic_mixings_has_gain_one():
    permutations = [torch.eye(4)[torch.randperm(4)] for _ in range(6)]
    mixed = [0.3 * a + 0.7 * b for a, b in pairwise(permutations)]
    assert composite_gain(mixed) == pytest.approx(1)
    assert composite_gain([3 * mix for mix in mixed]) == pytest.approx(3**5)


def test_the_gain_does_not_see_signs_or_transposition():
    mixing = torch.randn(5, 4, 4)
    assert float(mixing_gain(mixing)) == pytest.approx(float(mixing_gain(-mixing.mT)))


def test_sources_between_one_and_all():
    weights = torch.tensor([[3.0, 1.0], [1.0, 1.0], [0.0, -2.0]])
    expected = [math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)), 2.0, 1.0]
    assert effective_sources(weights).tolist() == pytest.approx(expected)
    assert effective_sources(7 * weights).tolist() == pytest.approx(expected)
