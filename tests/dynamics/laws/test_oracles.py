"""Closed forms against published digits, against the integrated equation, and against each other."""

import math

import numpy as np
import pytest

from normlab.dynamics import oracle, scalar, scheme_field
from normlab.errors import ConfigError, UnsupportedError

HERE = {"n": 256, "beta": 5.0}
CONSTANTS = {"pre": 16.678132652, "peri": 16.678132652, "post": 4269.601959, "sqrt": 233112.368, "ngpt": 36.166537}
ROWS = ["post", "pre", "mix", "peri", "ngpt", "sqrt", "lns", "deep_norm", "admin", "keel", "res"]


@pytest.mark.parametrize("name", CONSTANTS)
def test_terminal_constants_to_the_digits_given(name):
    value = oracle("terminal", name, **HERE).constant
    assert value == pytest.approx(CONSTANTS[name], rel=0.6 * 10.0 ** -(len(f"{CONSTANTS[name]}") - 2))


@pytest.mark.parametrize("name", ["post", "ngpt", "sqrt", "pre", "peri", "lns", "deep_norm", "res"])
@pytest.mark.parametrize(("n", "beta", "r0"), [(256, 5.0, 1.0), (7, 0.0, 2.0), (3, 4.0, 0.3)])
def test_hitting_times_by_quadrature_equal_those_of_the_equation(name, n, beta, r0):
    hits = scalar(name, n=n, beta=beta, r0=r0, time=1e9).hits
    for level in (0.1, 0.9):
        assert oracle("hitting_time", name, gamma=level, n=n, beta=beta, r0=r0).value == pytest.approx(
            hits[level], rel=1e-9
        )


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("n", "beta", "r0"), [(256, 5.0, 1.0), (2, 0.0, 1.0), (50, 1.0, 3.0)])
def test_initial_velocities_to_1e_12(name, n, beta, r0):
    measured = scalar(name, n=n, beta=beta, r0=r0, time=5.0).velocity[0]
    assert measured == pytest.approx(oracle("initial_velocity", name, n=n, beta=beta, r0=r0).value, rel=1e-12)


def test_almost_sure_may_take_longer_than_any_network_has_layers():
    """n = 3 <= e^9, so Pre-LN synchronises almost surely; the stream outgrows the push first, and it takes 1e111."""
    assert oracle("hitting_time", "post", gamma=0.5, n=3, beta=9.0).value < 1e4
    assert oracle("hitting_time", "pre", gamma=0.5, n=3, beta=9.0).value > 1e80


def test_peri_lns_and_olmo2_are_pre_on_another_clock():
    assert oracle("radius_at", gamma=0.5, **HERE).value == pytest.approx(4.01746392, abs=5e-9)
    for name in ("pre", "peri", "lns", "res"):
        curve = scalar(name, time=np.concatenate([[0.0], np.geomspace(0.1, 300.0, 60)]), **HERE)
        curve_radius = [oracle("radius_at", gamma=float(g), **HERE).value for g in curve.gamma[1:]]
        assert curve.r[1:] == pytest.approx(curve_radius, rel=1e-8)


def test_the_curves_constant_converges_faster_than_the_velocitys():
    curve = scalar("pre", time=[0.0, 300.0], **HERE)
    limit = oracle("curve_constant", **HERE).value
    by_curve = 2 * math.exp(curve.log_gap[-1]) * curve.r[-1] ** 2
    by_velocity = curve.velocity[-1] * 300.0**3
    assert abs(by_curve / limit - 1) < 1e-5
    assert abs(by_velocity / limit - 1) > 1e-2


def test_theorem_3_1_is_told_with_its_condition():
    assert oracle("synchronises", "pre", n=100, beta=5.0)[0] == "synchronises almost surely (n <= e^beta)"
    assert oracle("synchronises", "pre", n=256, beta=5.0)[0] == "synchronises, or some r' has liminf 0"
    assert oracle("synchronises", "ngpt", n=256, beta=5.0)[0] == "synchronises almost surely"


def test_what_has_no_closed_form_says_so():
    with pytest.raises(UnsupportedError, match="depends on time"):
        oracle("hitting_time", "mix", gamma=0.5, **HERE)
    with pytest.raises(UnsupportedError, match="the law is your alpha's"):
        oracle("terminal", scheme_field("ngpt", alpha=lambda t: 1.0), **HERE)
    with pytest.raises(ConfigError, match="did you mean 'terminal'"):
        oracle("terminus", "pre", **HERE)
