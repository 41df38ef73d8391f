import numpy as np
import pytest

from normlab.dynamics import oracle, simulate


def test_theorem_4_2_the_push_is_small_and_sqrt_n_dominates():
    """|A| of a uniform start at beta = 1, against the bound and against its leading term; Peri and nGPT move O(1)."""
    ratios = []
    for n, d in [(64, 32), (256, 32), (256, 512), (512, 128)]:
        run = simulate(["post", "peri", "ngpt"], n=n, d=d, beta=1.0, time=1e-3, samples=2, form="particles")
        post, peri, ngpt = run.speed[:, 0, 0]
        assert post == pytest.approx(oracle("typical_push", n=n, d=d).value, rel=0.15)
        assert 0.8 < peri < 1.0
        assert peri == pytest.approx(ngpt, rel=1e-12)
        ratios.append(post / oracle("initial_bound", n=n, d=d).value)
    assert max(ratios) < 1.0
    # "O(log n / d)" alone, as summaries have it, is exceeded 7-fold where sqrt(log n / n) dominates.
    small = simulate("post", n=256, d=512, beta=1.0, time=1e-3, samples=2, form="particles").speed[0, 0, 0]
    assert small > 5 * np.log(256) / 512
