"""Against scipy, and against what the definitions say."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab.stats import (
    Paired,
    gini,
    holm,
    interval,
    log_parabola,
    paired,
    power_law,
    ranks,
    slope,
    spearman,
    standard_error,
    t_cdf,
    t_quantile,
    t_reach,
)

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


def test_reach_is_a_table_of_students():
    known = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 8: 2.365, 1000: 1.962}
    assert {n: t_reach(n) for n in known} == pytest.approx(known, abs=6e-4)
    with pytest.raises(ValueError, match="one degree of freedom"):
        t_reach(1)


def test_numbers_are_bit_for_bit_those_of_stored_results():
    test = paired([0.031, -0.012, 0.044, 0.02])
    assert (test.mean, test.low) == (0.020749999999999998, -0.01733700452072029)
    assert (test.high, test.p) == (0.058837004520720285, 0.18136651073566545)
    assert interval([2.5, 2.25, 3.0]) == (1.634687574934144, 3.5319790917325227)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9))
@settings(max_examples=40, deadline=None)
def test_interval_agrees_with_scipy(values):
    low, high = interval(values)
    error = scipy_stats.sem(values)
    if error > 1e-9:
        theirs = scipy_stats.t.interval(0.95, len(values) - 1, sum(values) / len(values), error)
        assert (low, high) == pytest.approx(theirs, abs=1e-9)


@given(st.lists(st.integers(-5, 5), min_size=4, max_size=12), st.randoms())
@settings(max_examples=40, deadline=None)
def test_ranks_and_their_correlation_agree_with_scipy(xs, random):
    ys = [random.randint(-4, 4) for _ in xs]
    assert ranks(xs) == list(scipy_stats.rankdata(xs))
    if len(set(xs)) > 1 and len(set(ys)) > 1:
        assert spearman(xs, ys) == pytest.approx(scipy_stats.spearmanr(xs, ys).statistic, abs=1e-12)
    else:
        assert math.isnan(spearman(xs, ys))


def test_fits_find_their_own_law():
    assert slope([1, 2, 3, math.nan], [5, 7, 9, 0]) == pytest.approx(2)
    assert power_law([1, 2, 4, 8], [3 * x**-0.5 for x in (1, 2, 4, 8)]) == pytest.approx(-0.5)
    assert math.isnan(slope([1], [1]))


def test_gini():
    assert gini([2, 2, 2]) == pytest.approx(0)
    assert gini([0, 0, 0, 5]) == pytest.approx(3 / 4)
    assert math.isnan(gini([0, 0]))


def test_the_error_of_a_mean_is_no_number_where_a_value_is_not_finite():
    assert standard_error([1.0, 3.0]) == 1.0
    for values in ([1.0], [1.0, math.inf], [math.nan, 1.0, 2.0]):
        assert math.isnan(standard_error(values))
