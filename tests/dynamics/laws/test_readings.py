"""Exponents and rates read off curves, against those that the closed forms predict."""

import numpy as np
import pytest

from normlab.dynamics import scalar, scheme_field
from normlab.dynamics.laws.readings import exponent, local_exponent, report

HERE = {"n": 256, "beta": 5.0}


ROWS = ["post", "pre", "mix", "peri", "ngpt", "sqrt", "lns", "deep_norm", "admin", "keel", "res"]


@pytest.mark.parametrize("name", ROWS)
def test_measured_tails_are_the_predicted_ones(name):
    found = report(name, **HERE)
    assert not found.warnings
    assert found.terminal.value == pytest.approx(found.terminal_theory, abs=0.02)
    assert found.constant == pytest.approx(found.constant_theory, rel=1e-6)
    assert found.initial_velocity == pytest.approx(found.initial_velocity_theory, rel=1e-12)


def test_local_exponents_of_the_facts_page():
    t = np.concatenate([[0.0], np.geomspace(1.0, 2000.0, 4000)])
    pre, peri = (local_exponent(scalar(name, time=t, **HERE)) for name in ("pre", "peri"))
    assert np.interp(20.0, t[1:], pre) == pytest.approx(-3.99, abs=0.005)
    assert np.interp(300.0, t[1:], pre) == pytest.approx(-3.07, abs=0.005)
    assert np.interp(20.0, t[1:], peri) == pytest.approx(-3.04, abs=0.005)


def test_a_short_tail_warns_and_a_long_one_reads_three():
    assert "too small to read a power law" in report("pre", tail=20.0, **HERE).warnings[0]
    assert "too small" in report("peri", tail=64.0, **HERE).warnings[0]  # two octaves would have agreed on 3.04
    assert report("pre", tail=4000.0, **HERE).terminal.value == pytest.approx(3.0, abs=0.02)


def test_the_reading_of_an_exact_power_law_is_its_exponent():
    t = np.geomspace(0.1, 100.0, 200)
    assert exponent(t, np.log(7.0) - 2.5 * np.log(t)).value == pytest.approx(2.5, rel=1e-12)


def test_ngpt_is_exponential_only_for_a_constant_alpha():
    fast, slow = (report(scheme_field("ngpt", alpha=a), **HERE) for a in (1.0, 0.25))
    assert fast.terminal.value == pytest.approx(2.0, abs=1e-6)
    assert slow.terminal.value == pytest.approx(0.5, abs=1e-6)
    decaying = scalar(
        scheme_field("ngpt", alpha=lambda t: 1 / (1 + t)), time=np.geomspace(1e-3, 1e4, 500) - 1e-3, **HERE
    )
    power = exponent(decaying.t[1:], decaying.log_velocity[1:])  # alpha e^{-2 log(1+t)} = (1+t)^-3
    assert power.value == pytest.approx(3.0, abs=0.01)
