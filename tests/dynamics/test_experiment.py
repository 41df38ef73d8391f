"""The experiment: known times, settings side by side, one story by two equations."""

import numpy as np
import pytest

from normlab.dynamics import Setting, scheme_field
from normlab.dynamics.experiment import RANDOM_FIGURE_NOTE, explore, random_figure


def test_the_random_figure_says_what_is_inferred_and_gives_the_known_times():
    setting = random_figure(seeds=1)
    assert (setting.n, setting.d, setting.weights) == (64, 512, "random")
    assert "Inferred, not stated there: n = 64" in RANDOM_FIGURE_NOTE
    found = explore(["peri", "ngpt"], setting.replace(time=4.0, samples=41))
    stated = {"peri_norm": (1.28, 3.63), "ngpt": (1.09, 2.12)}
    for name, times in stated.items():
        hits = found.schemes[name].report.hitting_times
        assert (hits["0.5"], hits["0.9"]) == pytest.approx(times, rel=0.05)


def test_two_settings_of_one_scheme_stay_apart():
    rows = explore(
        [scheme_field("ngpt", alpha=1.0), scheme_field("ngpt", alpha=0.5)],
        Setting(n=8, d=8, init="symmetric", time=2.0),
    ).schemes
    assert list(rows) == ["ngpt #1", "ngpt #2"]
    first, second = (row.report.terminal.value for row in rows.values())
    assert first == pytest.approx(2 * second, rel=1e-6)


def test_curves_of_the_scalar_and_the_simulated_path_agree():
    setting = Setting(n=10, d=10, beta=2.0, init="symmetric", time=3.0)
    closed = explore(["mix"], setting)
    full = explore(["mix"], setting.replace(form="particles"))
    assert (closed.equation, full.equation) == ("scalar", "particles")
    for key in ("cosine", "radius", "variance", "velocity"):
        one, other = (getattr(found.schemes["mix_norm"].curve, key) for found in (closed, full))
        assert np.allclose(one, other, atol=1e-7)
