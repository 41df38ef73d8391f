import numpy as np
import pytest

from normlab.dynamics import FIELDS, simulate

TIGHT = {"relative": 1e-11, "absolute": 1e-14}


@pytest.mark.parametrize("causal", [False, True])
def test_gram_and_particles_agree_from_a_random_start(causal):
    shared = {
        "n": 20,
        "d": 30,
        "beta": 1.5,
        "init": "uniform",
        "seeds": (0, 1),
        "causal": causal,
        "samples": 31,
        **TIGHT,
    }
    gram, particles = (simulate(list(FIELDS), form=form, **shared) for form in ("gram", "particles"))
    assert np.abs(gram.gap - particles.gap).max() < 1e-9
    assert np.abs(gram.radius - particles.radius).max() < 1e-9
    assert gram.speed == pytest.approx(particles.speed, abs=1e-8)


def test_the_gram_form_does_not_know_d_and_rotations_do_not_matter():
    runs = [
        simulate("peri", n=16, d=d, beta=3.0, init="symmetric", seeds=(seed,), **TIGHT)
        for d, seed in ((16, 0), (99, 5))
    ]
    assert runs[0].gap == pytest.approx(runs[1].gap, abs=1e-10)
