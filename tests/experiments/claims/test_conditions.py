from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.conditions import LongEnough, WhereLearned
from normlab.experiments.claims.criteria import Difference, Inside, Judgement
from normlab.experiments.claims.decide import adjust, decide
from normlab.experiments.claims.evidence import Evidence, number
from normlab.experiments.claims.nulls import differences

LOW = Inside("m", high=1.0)
LONG = LongEnough(LOW, "steps", 1000, 0.5)


def verdict(criterion, values, *, loss=(2.0, 2.1, 2.05), **settings):
    claim = Claim("000-00", "It is below one.", "us", criterion)
    found = Evidence(claim.id, (number("m", values), number("loss", loss)), (0, 1, 2), settings)
    return decide([claim], {claim.id: found})[0]


def test_short_runs_decide_nothing_in_either_direction():
    for values in ([0.1, 0.2, 0.15], [2.0, 2.1, 1.9]):
        short = verdict(LONG, values, steps=999)
        assert short.verdict == "undecided"
        assert short.would_change == "1,000 steps would decide it, about 0.5 hours on one core; these runs have 999."
        assert "(" in short.sentence, "the interval is printed all the same"
    assert verdict(LONG, [0.1, 0.2, 0.15], steps=1000).verdict == "confirmed"
    assert verdict(LONG, [2.0, 2.1, 1.9], steps=1000).verdict == "refuted"
    assert "an unknown number" in verdict(LONG, [0.1, 0.2, 0.15]).would_change


def test_networks_that_learned_nothing_decide_nothing():
    learned = WhereLearned(LOW, (Inside("loss", high=2.5),))
    assert verdict(learned, [2.0, 2.1, 1.9]).verdict == "refuted"
    flat = verdict(learned, [2.0, 2.1, 1.9], loss=(3.3, 3.4, 3.35))
    assert flat.verdict == "undecided"
    assert "not learned enough (loss)" in flat.would_change
    assert "loss is 3.35" in flat.sentence, "what was lacking is told with its number"
    open_ = verdict(learned, [2.0, 2.1, 1.9], loss=(2.3, 2.9, 2.4))
    assert open_.verdict == "undecided", "nor those of which it is not known"


def test_they_say_so_and_nulls_see_through_them():
    assert LONG.text().endswith("decided from 1,000 steps on")
    leaf = Difference("m", "a", "b", -1, 0.1)
    inner = WhereLearned(LongEnough(leaf, "steps", 10, 1.0), (Inside("loss", high=2.5),))
    assert "decided only where loss lies below 2.5" in inner.text()
    assert differences(Claim("000-00", "x.", "y", inner)) == [leaf]


def test_runs_that_may_not_decide_cost_the_others_nothing():
    clear, short = Judgement((), 0.03, 0.9), Judgement((), 1.0, 1.0, lacking=("steps",))
    assert adjust({"a": clear, "b": short}) == {"a": 0.03, "b": 1.0}
    assert adjust({"a": clear, "b": Judgement((), 1.0, 1.0)})["a"] == 0.06
