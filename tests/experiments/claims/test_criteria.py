import math

import pytest

from normlab.experiments.claims.criteria import (
    Difference,
    Equals,
    Every,
    Exponent,
    Inside,
    Misprint,
    NotMeasured,
    Reading,
    Scoped,
    arms,
    reading,
)
from normlab.experiments.claims.evidence import Evidence, curve, number


def holds(criterion, *measurements):
    seeds = tuple(range(len(measurements[0].values)))
    found = criterion.judge(Evidence("x", measurements, seeds))
    return True if found.p_for < 0.05 else False if found.p_against < 0.05 else None


def test_inside_needs_its_interval_on_one_side():
    tight, wide = [1.0, 1.1, 0.9, 1.0], [0.0, 2.5, -0.5, 2.0]
    assert holds(Inside("m", 0.5, 1.5), number("m", tight)) is True
    assert holds(Inside("m", low=1.5), number("m", tight)) is False
    assert holds(Inside("m", 0.5, 1.5), number("m", wide)) is None
    assert holds(Inside("m", 0.5, 1.5), number("m", [1.0])) is None, "one seed decides nothing"
    assert holds(Inside("m", 0.5, 1.5), number("m", [1.0], exact=True)) is True
    assert holds(Inside("m", 0.5, 1.5), number("m", [1.0, math.nan])) is None


def test_the_test_is_the_95_percent_interval():
    values = [0.3, 0.1, 0.25, 0.4, 0.2]
    found = reading("m", values, (-math.inf, math.inf))
    for end in (found.low - 1e-9, found.low + 1e-9):
        again = reading("m", values, (end, math.inf))
        assert (again.p_for < 0.05) == (end < found.low)


def test_equals_looks_at_every_value():
    assert holds(Equals("m", 2.0, 0.1), curve("m", [1, 2], [[2.05, 1.95]], axis="x")) is True
    assert holds(Equals("m", 2.0, 0.1), curve("m", [1, 2], [[2.05, 2.2]], axis="x")) is False
    assert holds(Equals("m", 2.0, 0.1), number("m", math.nan)) is False
    assert holds(Equals("m", 200.0, 0.01, relative=True), number("m", 201.0)) is True


@pytest.mark.parametrize(("fit", "ys"), [("power", [1, 0.5, 0.25]), ("exponential", [1, math.exp(-1), math.exp(-3)])])
def test_exponents(fit, ys):
    measured = curve("m", [1, 2, 4], [ys, [y * 1.01 for y in ys]], axis="x")
    assert holds(Exponent("m", -1.1, -0.9, fit=fit), measured) is True
    assert holds(Exponent("m", low=-0.5, fit=fit), measured) is False
    tail = curve("m", [1, 2, 4, 8], [[9.0, *ys]], axis="x", exact=True)
    assert holds(Exponent("m", fit="power", start=2, stop=4, low=-5, high=5), tail) is True


def test_differences_are_paired_by_seed():
    noisy = [5.0, 1.0, 9.0, 3.0]
    lower = [v - 0.1 for v in (5.01, 0.99, 9.0, 3.0)]
    both = number("loss", lower, "new"), number("loss", noisy, "old")
    assert holds(Difference("loss", "new", "old", -1, 0.1), *both) is True
    assert holds(Difference("loss", "new", "old", 1, 0.1), *both) is False
    assert holds(Difference("loss", "new", "old", 0, 0.1, margin=0.5), *both) is True
    assert holds(Difference("loss", "new", "old", -1, 0.1, margin=0.2), *both) is False
    assert holds(Difference("loss", "old", "new", -1, 0.1, margin=-0.3), *both) is True, "not worse by more than 0.3"
    doubled = number("t", [2.0, 4.1, 8.0], "a"), number("t", [1.0, 2.0, 4.1], "b")
    assert holds(Difference("t", "a", "b", 1, 0.5, ratio=True, margin=0.5), *doubled) is True
    with pytest.raises(ValueError, match="an effect is positive"):
        Difference("loss", "new", "old", 0, 0.1)


def test_a_misprint_needs_both_halves():
    criterion = Misprint(Inside("m", low=2.0), Inside("m", 0.5, 1.5))
    seen = Evidence("x", (number("m", [1.0, 1.1, 0.9]),), (0, 1, 2))
    assert criterion.judge(seen).misprint
    assert criterion.judge(seen).p_for < 0.05
    as_printed = Evidence("x", (number("m", [2.5, 2.6, 2.4]),), (0, 1, 2))
    assert not criterion.judge(as_printed).misprint
    neither = Evidence("x", (number("m", [0.0, 0.1, -0.1]),), (0, 1, 2))
    assert criterion.judge(neither).p_for > 0.05
    assert criterion.judge(neither).p_against < 0.05


def test_every_and_scoped():
    good, bad = number("a", [1.0, 1.1]), number("b", [9.0, 9.1])
    both = Every((Inside("a", 0, 3), Inside("b", 0, 3)))
    assert holds(both, good, bad) is False
    assert len(list(both.leaves())) == 2
    scoped = Scoped(Inside("a", 0, 3), {"elsewhere": Inside("b", 0, 3)})
    assert holds(scoped, good, bad) is True
    found = scoped.judge(Evidence("x", (good, bad), (0, 1)))
    assert [r.label for r in found.beside] == ["elsewhere: b"]
    assert len(arms(("p", "q"), Inside, metric="m", low=0.0).parts) == 2
    assert NotMeasured("why", "how").judge(Evidence("x", (good,), (0, 1))).p_for == 1.0


def test_equal_values_on_the_border_decide_nothing():
    for values, wanted, holds in (
        ([0.0, 0.0, 0.0], (0.0, math.inf), None),
        ([0.0, 0.0, 0.0], (-math.inf, 0.0), None),
        ([1.0, 1.0, 1.0], (0.0, math.inf), True),
        ([-1.0, -1.0], (0.0, math.inf), False),
    ):
        assert reading("m", values, wanted).holds is holds
    assert reading("m", [2.0, 2.0], (2.0, 2.0), exact=True).holds is True


def test_a_grid_is_spread_that_equal_readings_do_not_show():
    found = Evidence("x", (number("rate", [0.8] * 3, "a"), number("rate", [0.1] * 3, "b")), (0, 1, 2))
    plain = Difference("rate", "a", "b", 1, 1.0, ratio=True).judge(found)
    assert plain.p_for == 0  # as if known exactly
    coarse = Difference("rate", "a", "b", 1, 1.0, ratio=True, grid=math.log(2)).judge(found)
    assert 0 < coarse.p_for < 0.05
    wide = Difference("rate", "a", "b", 1, 1.0, ratio=True, grid=math.log(100)).judge(found)
    assert wide.p_for > 0.05
    assert wide.readings[0].low < 0 < wide.readings[0].high


def test_a_number_is_said_with_its_interval():
    assert Reading("m", -0.0716, -0.1, -0.045, (0, 1), 5, 1, 0).number == "-0.0716 (-0.1 to -0.045)"
    assert Reading("m", -0.0, -0.0, -0.0, (0, 1), 1, 1, 0).number == "0"
    assert Reading("m", math.nan, None, None, (0, 1), 3, 1, 1).number == "no number in some seed"
