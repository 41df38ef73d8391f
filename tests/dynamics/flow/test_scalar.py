"""The scalar equation against published digits, and far beyond what float64 particles resolve."""

import math

import pytest

from normlab.dynamics import oracle, scalar, scheme_field
from normlab.dynamics.laws.readings import report

HERE = {"n": 256, "beta": 5.0}


TIMES = {
    "post": (2.547, 3.819, 4.931, 6.131),
    "ngpt": (0.956, 1.623, 2.572, 3.748),  # 3.74748 by both methods: the stated digit was rounded twice
    "sqrt": (4.170, 7.464, 11.009, 15.526),
    "pre": (4.182, 8.159, 14.843, 35.25),
    "mix": (2.548, 4.176, 6.913, 15.27),
    "peri": (1.577, 3.714, 9.523, 29.60),
    "lns": (8.55, 24.8, 69.9, 345.9),
}


@pytest.mark.parametrize("name", TIMES)
def test_hitting_times_to_the_digits_given(name):
    hits = scalar(name, time=400.0, **HERE).hits
    for got, stated in zip(hits.values(), TIMES[name], strict=True):
        assert got == pytest.approx(stated, abs=0.55 * 10 ** -len(f"{stated}".split(".")[1]))


def test_real_lns_divides_the_logits_too_and_gathers_sooner():
    plain, scaled = (scalar(scheme_field("lns", logits=how), time=400.0, **HERE) for how in ("plain", "scaled"))
    assert scaled.hits[0.5] == pytest.approx(6.54, abs=0.01)
    assert plain.hits[0.5] == pytest.approx(24.80, abs=0.01)
    assert report(scheme_field("lns", logits="scaled"), **HERE).terminal.value == pytest.approx(2.0, abs=0.02)


def test_a_gap_of_1e_70_is_seen():
    curve = scalar("post", time=85.0, **HERE)
    assert curve.log_gap[-1] < math.log(1e-70)
    constant = oracle("terminal", "post", **HERE).constant
    assert curve.log_velocity[-1] == pytest.approx(math.log(constant) - 170.0, rel=1e-10)
