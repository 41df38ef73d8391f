"""Particles, the Gram form and the scalar equation tell the same story; laws of the paper measured on them."""

import numpy as np
import pytest

from normlab.dynamics import FIELDS, Custom, Field, Setting, oracle, scalar, simulate
from normlab.errors import ConfigError, InputError

TIGHT = {"relative": 1e-11, "absolute": 1e-14}


@pytest.mark.parametrize("form", ["gram", "particles"])
def test_256_particles_follow_the_scalar_equation_to_1e_8(form):
    names = ["mix", "peri"] if form == "particles" else ["post", "mix"]
    run = simulate(names, n=256, d=256, beta=5.0, init="symmetric", form=form, samples=21, time=6.0, **TIGHT)
    for i, row in enumerate(run.fields):
        curve = scalar(row, n=256, beta=5.0, time=run.t)
        assert np.abs(run.cosine[i, 0] - curve.gamma).max() < 1e-8
        assert np.abs(run.radius[i, 0] - curve.r).max() < 1e-8
        hits = np.array(list(curve.hits.values()))
        assert np.nanmax(np.abs(run.hits[i, 0] - hits)) < 1e-8
        assert (np.isnan(run.hits[i, 0]) == np.isnan(hits)).all()


@pytest.mark.parametrize("gamma0", [-0.05, 0.0, 0.4])
def test_every_row_follows_the_scalar_equation(gamma0):
    run = simulate(
        list(FIELDS), n=12, d=16, beta=2.0, init="symmetric", gamma0=gamma0, r0=1.7, form="particles", **TIGHT
    )
    for i, row in enumerate(run.fields):
        curve = scalar(row, n=12, beta=2.0, time=run.t, gamma0=gamma0, r0=1.7)
        assert np.abs(run.cosine[i, 0] - curve.gamma).max() < 1e-9
        assert run.gap_rate[i, 0] == pytest.approx(curve.velocity, rel=1e-5, abs=1e-10)


def test_a_users_own_row_runs_beside_the_table():
    own = Field("mine", "Mine", ((0.0, Custom(s=lambda t, r, a, m: r, dr=lambda t, r, a, m: a)),))
    for form in ("gram", "particles"):
        run = simulate([own, "pre"], n=10, d=12, beta=1.0, form=form, **TIGHT)
        assert run.gap[0] == pytest.approx(run.gap[1], abs=1e-10)


@pytest.mark.parametrize("name", ["post", "pre", "mix", "peri", "ngpt", "sqrt", "lns", "res"])
def test_the_small_cone_variance_law(name):
    """Theorem 4.3 with its constant: Var' = -k Var, k = 2 c(t) / s; the printed row of nGPT is inverted."""
    run = simulate(name, n=40, d=20, beta=2.0, init="cone", angle=0.01, time=8.0, samples=81, **TIGHT)
    _, k, source = oracle("variance_rate", name)
    assert "4.3" in source
    t, log_var = run.t, np.log(run.variance[0, 0])
    late = t > 3.0
    expected = np.array([k(x, r) for x, r in zip(t, run.radius[0, 0], strict=True)])
    assert -np.gradient(log_var, t)[late] == pytest.approx(expected[late], rel=0.01)


def test_ngpts_variance_rate_is_two_alpha_not_two_over_alpha():
    from normlab.dynamics import scheme_field

    run = simulate(scheme_field("ngpt", alpha=0.25), n=40, d=20, beta=2.0, init="cone", angle=0.01, time=8.0, **TIGHT)
    slope = np.polyfit(run.t, np.log(run.variance[0, 0]), 1)[0]
    assert slope == pytest.approx(-0.5, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"beta": -1.0}, ConfigError, "beta = -1: the inverse temperature should be 0 or more"),
        ({"n": 1}, ConfigError, "at least two tokens"),
        ({"n": 100, "d": 8, "init": "symmetric", "form": "particles"}, ConfigError, "need d >= 100, but d = 8"),
        ({"time": 100.0, "max_steps": 3}, InputError, "needs more than the 3 steps allowed"),
        ({"time": -1.0}, ConfigError, "time: input should be greater than 0"),
        ({"weights": "random", "form": "gram"}, ConfigError, "form='gram' needs Q = K = V = I"),
        ({"weights": "identity", "heads": 2}, ConfigError, "several heads with identity weights"),
        ({"weights": "random", "heads": 5}, ConfigError, "5 heads do not divide d = 64"),
        ({"init": "text", "n": 900}, InputError, "words but n = 900"),
        ({"init": "conic"}, ConfigError, "did you mean 'cone'"),
        ({"samplez": 3}, ConfigError, "did you mean 'samples'"),
        ({"angle": 2.0, "init": "cone"}, ConfigError, "between 0 and pi/2"),
        ({"gamma0": -0.5, "init": "symmetric"}, ConfigError, "have a cosine in"),
    ],
)
def test_bad_settings_are_one_clear_sentence(changes, error, words):
    import re

    with pytest.raises(error, match=re.escape(words)):
        simulate("post", **changes)


def test_tau_outside_the_interval():
    with pytest.raises(ConfigError, match=r"tau = 2.5 of mix_norm is outside the interval \(0, 2\)"):
        simulate("mix", time=2.0)


def test_the_setting_round_trips():
    setting = Setting(n=5, init="cone", seeds=(3, 4))
    assert Setting.from_yaml(setting.to_yaml()) == setting
