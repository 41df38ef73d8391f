"""Theory overlays against the facts that are known exactly."""

import math

import pytest

from normlab.probes.measure import bounds


@pytest.mark.parametrize(("placement", "time", "cosine"), [("post_norm", 3.819, 0.5), ("pre_norm", 8.159, 0.5)])
def test_sphere_curve_passes_the_published_times(placement, time, cosine):
    """beta = 5, n = 256, r0 = 1 from orthogonal tokens: the time at which the cosine is one half."""
    curve = [0.0, *bounds.sphere_cosine(placement, 0.0, 12, tokens=256, beta=5.0)]
    before, after = curve[int(time)], curve[int(time) + 1]
    assert before < cosine < after
    middle = before + (after - before) * (time - int(time))
    assert middle == pytest.approx(cosine, abs=0.08)  # a straight line between layers


def test_peri_is_pre_on_another_clock():
    curve = [0.0, *bounds.sphere_cosine("peri_norm", 0.0, 10, tokens=256, beta=5.0)]
    assert curve[3] < 0.5 < curve[4]  # 3.714
    assert curve[9] < 0.9 < curve[10]  # 9.523


def test_the_slow_schemes_pass_their_times():
    """sqrt-scaling 4.170 and 7.464, LayerNorm scaling 8.55 and 24.8: cosine 0.1 and 0.5."""
    root = [0.0, *bounds.sphere_cosine("sqrt_scaling", 0.0, 9, tokens=256, beta=5.0)]
    assert root[4] < 0.1 < root[5]
    assert root[7] < 0.5 < root[8]
    scaled = [0.0, *bounds.sphere_cosine("ln_scaling", 0.0, 26, tokens=256, beta=5.0)]
    assert scaled[8] < 0.1 < scaled[9]
    assert scaled[24] < 0.5 < scaled[25]


def test_the_law_of_a_scheme_becomes_an_exponent():
    assert bounds.law_exponent([4.0 * n**1.4 for n in range(1, 9)]) == pytest.approx(0.7)
    assert bounds.law_exponent([1.0, (0.5, 2.0), 3.0]) is None
    assert bounds.law_exponent([1.0, None]) is None


def test_bounds_and_exponents():
    band = bounds.xiong_bounds(2, 64)
    assert band.low == pytest.approx([math.sqrt(1.5 * 64), math.sqrt(2 * 64)])
    assert band.high == pytest.approx([math.sqrt(2.5 * 64), math.sqrt(4 * 64)])
    assert bounds.growth_exponent("pre_norm, parallel branches") == 0.5
    assert bounds.growth_exponent("no_norm") is None
    assert bounds.sphere_cosine("no_norm", 0.1, 3, tokens=9) is None


def test_orthogonal_sum():
    assert bounds.orthogonal_sum(3.0, [[4.0], [12.0, 0.0]]) == pytest.approx([5.0, 13.0])
