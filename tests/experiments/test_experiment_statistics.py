"""Against scipy, and against what the definitions say."""

import math

import pytest

from normlab.experiments.statistics import Paired, holm, interval, log_parabola, paired, t_cdf, t_quantile

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 30, 31])
@pytest.mark.parametrize("t", [-40.0, -2.3, -0.1, 0.0, 0.7, 3.0, 12.7])
def test_student_distribution(freedom, t):
    assert t_cdf(t, freedom) == pytest.approx(scipy_stats.t.cdf(t, freedom), abs=1e-13)
    if abs(t) < 5:
        assert t_quantile(t_cdf(t, freedom), freedom) == pytest.approx(t, abs=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7])
def test_quantile(freedom):
    assert t_quantile(0.975, freedom) == pytest.approx(scipy_stats.t.ppf(0.975, freedom), rel=1e-7)


def test_paired_test_and_interval():
    a, b = [3.1, 2.9, 3.4, 3.0], [3.0, 2.95, 3.1, 2.7]
    ours = paired([x - y for x, y in zip(a, b, strict=True)])
    theirs = scipy_stats.ttest_rel(a, b)
    low, high = theirs.confidence_interval()
    assert ours.p == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx((low, high))
    assert interval([x - y for x, y in zip(a, b, strict=True)]) == pytest.approx((low, high))


def test_too_few_seeds_give_no_test():
    assert paired([]) == Paired(0, None)
    assert paired([0.5]).p is None
    assert not paired([0.5]).significant
    assert interval([1.0]) is None
    assert paired([0.0, 0.0]).p == 1.0
    assert paired([1.0, 1.0]).significant


def test_holm():
    tests = {"a": Paired(3, 1.0, p=0.01), "b": Paired(3, 1.0, p=0.04), "c": Paired(3, 1.0, p=0.03), "d": Paired(1, 1.0)}
    adjusted = holm(tests)
    assert [adjusted[k].adjusted for k in "abc"] == pytest.approx([0.03, 0.06, 0.06])
    assert adjusted["d"].adjusted is None
    assert [k for k in "abcd" if adjusted[k].significant] == ["a"]


def test_parabola_finds_its_own_vertex():
    def loss(lr):
        return 2.0 + 0.3 * (math.log2(lr) - math.log2(0.003)) ** 2

    lowest, curvature = log_parabola([(lr, loss(lr)) for lr in (0.001, 0.004, 0.02)])
    assert lowest == pytest.approx(0.003)
    assert curvature == pytest.approx(0.3)
    assert log_parabola([(1.0, 1.0), (2.0, 2.0), (4.0, 2.5)]) is None
