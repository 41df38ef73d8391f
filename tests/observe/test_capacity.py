"""Which layers matter, on curves whose answer is known."""

import math

import pytest

from normlab.observe.capacity import deep_over_early, gradient_against_effect, prunable_share


def test_prunable_share():
    curve = [2.0, 2.005, 2.009, 2.2, 2.201]
    assert prunable_share(curve, layers=8, floor=3.0) == 0.25  # a hundredth of one nat
    assert prunable_share(curve, layers=8, floor=3.0, tolerance=0.006) == 0.125
    assert prunable_share([2.0, 2.5], layers=4, floor=3.0) == 0.0
    assert prunable_share([2.0, 1.9, 1.8], layers=4, floor=3.0) == 0.5
    assert math.isnan(prunable_share([3.1, 3.1], layers=4, floor=3.0))  # nothing was learnt


def test_deep_over_early():
    assert deep_over_early([9, 1, 1, 1, 1, 9]) == 0.5
    assert deep_over_early([9, 3, 3, 1, 1, 9]) == 0.25
    assert deep_over_early([0, 2, 2, -1, -1, 0]) == 0.0
    assert deep_over_early([0, 1, 5, 3, 0]) == 0.75  # the middle one is neither


def test_gradient_against_effect():
    assert gradient_against_effect([4, 3, 2, 1], [8, 4, 2, 1]) == pytest.approx(1.0)
