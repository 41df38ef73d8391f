import numpy as np
import pytest

from normlab.dynamics.fields import PAPER_SIX
from normlab.dynamics.flow.simulate import Setting, simulate
from normlab.dynamics.flow.starts import uniform
from normlab.dynamics.laws.energy import energy, slope
from normlab.errors import UnsupportedError


def test_the_energy_is_largest_at_consensus():
    together = np.tile(uniform(1, 5, 0), (8, 1))
    assert energy(together, 3.0) == pytest.approx(1 / 6)
    assert energy(uniform(8, 5, 0), 3.0) < 1 / 6


@pytest.mark.parametrize("scheme", PAPER_SIX)
def test_every_scheme_climbs_it_at_the_stated_slope(scheme):
    setting = Setting(n=10, d=4, beta=2.0, time=3.0, samples=301, keep_tokens=True, seeds=(3,))
    run = simulate(scheme, setting)
    along = np.array([energy(theta, 2.0) for theta in run.tokens[0, 0]])
    assert np.all(np.diff(along) > -1e-12)
    if scheme in ("post_norm", "ngpt", "sqrt_scaling"):  # radii stay 1, so the slope follows from the directions alone
        middle = 100
        measured = (along[middle + 1] - along[middle - 1]) / (run.t[middle + 1] - run.t[middle - 1])
        stated = slope(scheme, run.tokens[0, 0, middle], np.ones(10), beta=2.0, t=run.t[middle])
        assert measured == pytest.approx(stated, rel=1e-3)


def test_raw_values_have_no_such_energy():
    with pytest.raises(UnsupportedError, match="no gradient of an energy"):
        slope("res_norm", uniform(4, 3, 0), np.ones(4), beta=1.0)
