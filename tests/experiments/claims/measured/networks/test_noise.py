"""The lag of averages against the recursion written out, and gradients whose noise is known."""

import numpy
import pytest

from normlab.experiments.claims.measured.networks.noise import gradient_variance, lag


def test_without_noise_the_lag_is_a_recursion():
    """beta_t = (10 + t)^-1/2, alpha_t = (10 + t)^-1/5; the optimum is zero, the start 3."""
    curvature = numpy.logspace(-2, 0, 4)
    theta = start = average = numpy.full(4, 3.0)
    for t in range(1, 51):
        theta = theta * (1 - 0.5 * curvature)
        beta = (10 + t) ** -0.5
        average = (1 - beta) * average + beta * theta
    corrected = average + (10 + 50) ** -0.2 * (theta - start)
    raw = numpy.linalg.norm(theta)
    found = lag(0, dim=4, steps=50, noise=0.0)
    assert found[0] == pytest.approx(numpy.linalg.norm(average) / raw, rel=1e-6)
    assert found[1] == pytest.approx(numpy.linalg.norm(corrected) / raw, rel=1e-6)


def test_one_legal_token_has_nothing_to_draw():
    assert gradient_variance(0, 1, exact=False) == pytest.approx(gradient_variance(0, 1, exact=True), rel=1e-9)


def test_drawing_adds_noise():
    assert gradient_variance(0, 8, exact=False) > 2 * gradient_variance(0, 8, exact=True)
