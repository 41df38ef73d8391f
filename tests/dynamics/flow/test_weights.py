import numpy as np
import pytest

from normlab.dynamics import simulate


def test_radius_grows_linearly_when_weights_are_tied_and_like_sqrt_when_fresh():
    shared = {"n": 16, "d": 64, "beta": 8.0, "init": "uniform", "time": 48.0, "samples": 49, "seeds": (0, 1, 2)}
    slopes = {}
    for kind in ("random", "fresh"):
        run = simulate("pre", weights=kind, relative=1e-5, absolute=1e-7, **shared)
        late = run.t >= 12
        slopes[kind] = np.polyfit(np.log(run.t[late]), np.log(run.radius[0, :, late].mean(1)), 1)[0]
    assert slopes["random"] == pytest.approx(1.03, abs=0.12)
    assert slopes["fresh"] == pytest.approx(0.57, abs=0.12)
