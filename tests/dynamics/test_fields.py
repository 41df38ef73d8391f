"""The table of rows, its options and its errors."""

import math

import numpy as np
import pytest

from normlab.dynamics import FIELDS, Custom, Field, Gain, GainSchedule, Stage, scalar, scheme_field
from normlab.errors import ConfigError, UnsupportedError

# s and r' of the facts table, written out once more by hand: (t, r, <theta, A>, |A|) -> (s, r').
TABLE = {
    "post_norm": lambda t, r, a, m: (1.0, 0.0),
    "pre_norm": lambda t, r, a, m: (r, a),
    "peri_norm": lambda t, r, a, m: (r * m, a / m),
    "ngpt": lambda t, r, a, m: (m, 0.0),
    "sqrt_scaling": lambda t, r, a, m: (math.sqrt(t + 1), 0.0),
    "ln_scaling": lambda t, r, a, m: (r * math.sqrt(t + 1), a / math.sqrt(t + 1)),
    "deep_norm": lambda t, r, a, m: (2.0, 0.0),
    "admin": lambda t, r, a, m: (2.0, 0.0),
    "keel": lambda t, r, a, m: (16.0, 0.0),
    "res_norm": lambda t, r, a, m: (r * m, a / m),
}


@pytest.mark.parametrize("name", TABLE)
def test_rows_are_the_papers_equations(name):
    stage = FIELDS[name].last
    for t, r, a, m in [(0.0, 1.0, 0.3, 0.5), (3.0, 2.5, -0.2, 0.9), (8.0, 7.0, 0.99, 0.995)]:
        s, growth = TABLE[name](t, r, a, m)
        assert stage.slowness(t, r, m) == pytest.approx(s, rel=1e-15)
        assert float(stage.growth(t, np.float64(a), m)) == pytest.approx(growth, rel=1e-15)


def test_mix_is_post_then_pre_at_tau():
    mix = scheme_field("mix", tau=3.0)
    assert mix.stage(2.999) == FIELDS["post_norm"].last
    assert mix.stage(3.0) == FIELDS["pre_norm"].last
    assert mix.switches == (3.0,)


def test_options_set_the_row():
    assert scheme_field("deepnorm", depth=8).last.slowness(0, 1, 1) == pytest.approx(16**0.25)
    assert scheme_field("keel", depth=12).last.slowness(0, 1, 1) == pytest.approx(24.0)
    assert scheme_field("ngpt", alpha=0.25).last.slowness(0, 1, 0.5) == pytest.approx(2.0)
    assert scheme_field("ngpt", alpha=lambda t: 1 / (1 + t)).last.slowness(3.0, 1, 0.5) == pytest.approx(2.0)


@pytest.mark.parametrize("gain", [Gain(0.7, 0.0), Gain(1.3, -0.5), Gain(2.0, -1.0), Gain(0.4, 0.5)])
def test_a_gains_integral_is_its_integral(gain):
    assert gain.integral(5.0) == pytest.approx(GainSchedule(gain).integral(5.0), rel=1e-12)


def test_names_take_dashes_case_and_aliases():
    assert scheme_field("Pre-LN") is FIELDS["pre_norm"]
    assert scheme_field("LNS") is FIELDS["ln_scaling"]
    assert scheme_field("olmo-2") is FIELDS["res_norm"]


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("hyper_connections", {}, UnsupportedError, "they cover post_norm, pre_norm"),
        ("pery_norm", {}, UnsupportedError, "did you mean 'peri_norm'?"),
        ("post", {"tau": 1.0}, ConfigError, "which takes no option"),
        ("mix", {"tau": -1.0}, ConfigError, "tau of mix_norm should be a positive number"),
        ("ngpt", {"alpha": 0.0}, ConfigError, "alpha of ngpt should be a positive number"),
        ("lns", {"logits": "both"}, ConfigError, "'plain' or 'scaled'"),
    ],
)
def test_bad_names_and_options_say_what_to_do(name, options, error, words):
    with pytest.raises(error, match=words.replace("?", r"\?")):
        scheme_field(name, **options)


def test_a_users_own_row_equals_the_built_in_one():
    own = Field("mine", "Mine", ((0.0, Custom(s=lambda t, r, a, m: r * m, dr=lambda t, r, a, m: a / m)),))
    ours, theirs = (scalar(f, n=32, beta=3.0, time=5.0) for f in (own, "peri"))
    assert np.allclose(ours.log_gap, theirs.log_gap, atol=1e-12, rtol=0)


def test_a_stage_of_scaled_logits_is_hot_only_later():
    stage = scheme_field("lns", logits="scaled").last
    assert isinstance(stage, Stage)
    assert stage.logits == -1.0
