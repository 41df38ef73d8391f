"""Lengths and angles: invariances that hold whatever the numbers are."""

import math

import pytest
import torch

from normlab.probes.measure.metrics import stream


def test_norms_of_half_precision_do_not_overflow():
    x = torch.full((2, 4), 40_000.0, dtype=torch.float16)  # the square is beyond float16
    assert stream.token_norms(x).tolist() == pytest.approx([80_000.0] * 2)


def test_turning_does_not_see_scale_and_is_symmetric():
    a, b = (torch.randn(3, 5, 16, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(stream.angular_distance(3 * a, 0.1 * b), stream.angular_distance(b, a))
    torch.testing.assert_close(stream.angular_distance(a, b), stream.cosine(a, b).arccos() / math.pi)
    assert float(stream.block_influence(a, 5 * a)) == pytest.approx(0, abs=1e-12)
    assert float(stream.block_influence(a, -a)) == pytest.approx(2)


def test_a_norm_that_is_zero_has_no_rate_and_is_passed_over():
    assert stream.exponential_rate([1.0, 0.0, math.exp(1.0)]) == pytest.approx(0.5)
    assert stream.growth_exponent([2.0, 2.0, 2.0]) == pytest.approx(0, abs=1e-12)
