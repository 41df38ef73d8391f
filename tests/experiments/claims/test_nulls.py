import random

import pytest

from normlab.errors import InputError
from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.criteria import Difference, Judgement
from normlab.experiments.claims.decide import adjust
from normlab.experiments.claims.evidence import Evidence, curve, number
from normlab.experiments.claims.nulls import column, critical, differences, null_check


def check(leaf, *, seeds=24, size=5, page=None, looks=1):
    rng = random.Random(0)
    null = Evidence(
        "null-m", (number("m", [rng.gauss(3.0, 0.02) for _ in range(seeds)], "pre_norm"),), tuple(range(seeds))
    )
    claim = Claim("000-00", "A is lower.", "us", leaf)
    assert differences(claim) == [leaf]
    return null_check(claim, leaf, null=null, page=page or {}, arm_size=size, looks=looks)


def test_a_null_is_silent_and_a_planted_effect_is_found():
    seen = check(Difference("m", "a", "b", -1, 0.1))
    assert seen.false_alarms <= 0.08, "5 % is nominal for one test alone"
    assert seen.power > 0.9
    assert check(Difference("m", "a", "b", -1, 0.001)).power < 0.2, "what is far below the noise is not found"
    assert "24 seeds of pre_norm, 5 against 5, 1000 random splits" in seen.sentence


def test_a_claim_that_was_looked_at_often_has_less_power():
    once, often = (check(Difference("m", "a", "b", -1, 0.03), looks=looks) for looks in (1, 3))
    assert often.false_alarms < once.false_alarms
    assert often.power < 0.7 * once.power


def test_claims_of_no_difference_are_turned_round():
    seen = check(Difference("m", "a", "b", 0, 0.1, margin=0.05), size=10)
    assert seen.power > 0.9, "equal arms are called equal"
    assert seen.false_alarms < 0.05, "and arms that differ are not"
    worse = check(Difference("m", "a", "b", -1, 0.1, margin=-0.05), size=10)
    assert worse.power > 0.9
    assert worse.false_alarms < 0.05


def test_a_claim_with_a_margin_is_tried_on_its_edge():
    leaf = Difference("m", "a", "b", -1, 0.2, margin=0.1)
    assert leaf.edge == -0.1
    seen = check(leaf, size=8)
    assert seen.false_alarms <= 0.09, "on the edge neither side may be called"
    assert seen.power > 0.9
    assert "moved by -0.1 to the edge" in seen.sentence
    assert Difference("m", "a", "b", -1, 0.2, margin=-0.1).edge == 0.0, "a claim of no harm holds for equal arms"


def test_a_claim_about_the_end_is_told_the_end_of_the_curve():
    rows = curve("m", (0.5, 1.0), [[9.0, 1.0], [8.0, 2.0]], axis="share")
    assert column(rows, Difference("m", "a", "b", -1, 0.1)) == [1.0, 2.0]
    assert column(rows, Difference("m", "a", "b", -1, 0.1, at=0.5)) == [9.0, 8.0]


def test_too_few_seeds_are_refused():
    with pytest.raises(InputError, match="19 seeds; 20 or more"):
        check(Difference("m", "a", "b", -1, 0.1), seeds=19)


def test_arms_without_a_single_event_decide_nothing():
    """Counts that are nearly always 0: their difference is 0 in every seed of most splits."""
    null = Evidence("null-m", (number("m", [0.0] * 23 + [1.0], "pre_norm"),), tuple(range(24)))
    leaf = Difference("m", "a", "b", 1, 3.0)
    seen = null_check(Claim("000-00", "A has more.", "us", leaf), leaf, null=null, page={}, arm_size=6)
    assert seen.false_alarms <= 0.05


def test_the_limit_is_that_of_the_whole_page():
    """Holm's correction by the limit that is found once, against the correction of every p by itself."""
    page = {f"000-{i:02d}": Judgement((), p, 1.0) for i, p in enumerate((0.0, 0.001, 0.02, 0.4), 1)}
    claim = Claim("000-00", "A is lower.", "us", Difference("m", "a", "b", -1, 0.1))
    limit = critical(claim, page)
    for p in (1e-6, 0.3 * limit, 0.99 * limit, 1.01 * limit, 0.03, 0.2):
        assert (adjust({**page, claim.id: Judgement((), p, 1.0)})[claim.id] < 0.05) == (p < limit)
