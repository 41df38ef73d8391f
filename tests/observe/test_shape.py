"""Trend and period of lists whose answer is known."""

import math
import random

import pytest

from normlab.observe.shape import log_slope, monotone, periodicity


def test_log_slope_of_an_exponential():
    assert log_slope([2.0 ** (i / 5) for i in range(6)]) == pytest.approx(math.log(2))
    assert log_slope([3.0] * 6) == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(log_slope([1.0, 0.0]))


def test_monotone():
    assert monotone([1.0, 2.0, 5.0, 7.0]) == pytest.approx(1.0)
    assert monotone([4.0, 3.0, 2.0]) == pytest.approx(-1.0)


@pytest.mark.parametrize("trend", [0.0, 0.3])
def test_a_planted_period_is_found_under_any_trend(trend):
    sizes = [math.exp(trend * i + (0.5 if i % 4 == 0 else 0.0)) for i in range(24)]
    assert periodicity(sizes, 4) > 1.0
    assert periodicity(sizes, 3) < 0.2
    assert periodicity(sizes, 5) < 0.5


def test_noise_has_no_period():
    """The mean over many lists of noise is close to 0, and hardly one reaches a pattern's 1."""
    source = random.Random(0)
    found = [periodicity([math.exp(source.gauss(0, 1)) for _ in range(24)], 4) for _ in range(400)]
    assert abs(sum(found) / len(found)) < 0.05
    assert sum(value > 1 for value in found) < 4


def test_too_short_or_flat():
    assert math.isnan(periodicity([1.0, 2.0, 3.0], 2))
    assert math.isnan(periodicity([1.0] * 12, 3))
