import math
import random
import statistics
from dataclasses import replace

import pytest

from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.conditions import LongEnough
from normlab.experiments.claims.criteria import Every, Inside, Judgement, Misprint, NotMeasured
from normlab.experiments.claims.decide import adjust, decide, looked, seeds_needed, verdict_of
from normlab.experiments.claims.evidence import Evidence, number


def page(*values, criterion=None):
    rows = [
        Claim(f"000-{i:02d}", "It is below one.", "us", criterion or Inside("m", high=1.0)) for i in range(len(values))
    ]
    known = {
        row.id: Evidence(row.id, (number("m", v),), tuple(range(len(v))), seconds=60.0)
        for row, v in zip(rows, values, strict=True)
        if v is not None
    }
    return decide(rows, known)


def test_verdicts():
    low, high, both, missing = page([0.1, 0.2, 0.15], [2.0, 2.1, 1.9], [0.5, 1.5, 0.7], None)
    assert [d.verdict for d in (low, high, both, missing)] == ["confirmed", "refuted", "undecided", "not measured"]
    assert "m is 0.15 (" in low.sentence
    assert "wanted below 1: as wanted" in low.sentence
    assert "seeds in place of 3" in both.would_change
    assert "on one core" in both.would_change
    assert "normlab claims run 000-03" in missing.would_change


def test_holm_is_taken_over_the_page():
    alone = page([0.5, 0.75, 0.85, 0.6])[0]
    assert alone.verdict == "confirmed"
    many = page(*([[0.5, 0.75, 0.85, 0.6]] * 6))
    assert {d.verdict for d in many} == {"undecided"}, "six such tests may not each be called"
    exact = page([0.5, 0.75, 0.85, 0.6], *([[0.1, 0.1]] * 6))
    assert exact[0].verdict == "confirmed", "certain claims cost the others nothing"


def test_misprints_and_what_is_not_measured():
    misprint = Misprint(Inside("m", low=1.5), Inside("m", 0.5, 1.0))
    assert page([0.7, 0.71, 0.72], criterion=misprint)[0].verdict == "misprinted"
    (row,) = page([0.7, 0.71], criterion=NotMeasured("no cluster", "a run on one"))
    assert (row.verdict, row.sentence) == ("not measured", "no cluster")


def test_one_seed_has_no_interval():
    (row,) = page([0.1])
    assert row.verdict == "undecided"
    assert "two or more" in row.would_change
    assert seeds_needed(row.finding) is None


def test_the_clearer_side_is_corrected():
    found = {"a": Judgement((), 0.9, 0.01), "b": Judgement((), 0.02, 0.99)}
    assert adjust(found) == pytest.approx({"a": 0.02, "b": 0.02})
    assert verdict_of(found["a"], 0.02) == "refuted"
    assert verdict_of(found["b"], 0.06) == "undecided"


def test_the_seeds_that_are_asked_for_do_decide():
    values = [0.5, 1.5, 0.7, 0.4]
    (row,) = page(values)
    needed = round(seeds_needed(row.finding))
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    again = [mean + spread * (-1) ** i * ((needed - 1) / needed) ** 0.5 for i in range(needed // 2 * 2)]
    assert page(again)[0].verdict == "confirmed"
    assert page(again[: needed // 2])[0].verdict == "undecided"
    assert seeds_needed(row.finding, times=10.0) > needed, "Holm's correction costs seeds"
    (border,) = page([0.5, 1.5])
    assert seeds_needed(border.finding) == math.inf


def test_what_is_exact_asks_for_no_seeds():
    both = Every((Inside("exact", high=1.0), Inside("m", high=1.0)))
    claim = Claim("000-00", "Both are below one.", "us", both)
    measured = (number("exact", 0.5, exact=True), number("m", [0.2, 1.4, 0.9, 0.7]))
    row = decide([claim], {claim.id: Evidence(claim.id, measured, (0, 1, 2, 3), seconds=40.0)})[0]
    assert row.verdict == "undecided"
    assert "seeds in place of 4" in row.would_change


def test_each_look_costs_its_share():
    """Seeds that are added until p < 0.05 find something in a null more often than in 5 %; p doubles."""
    claim = Claim("000-00", "It is below one.", "us", Inside("m", high=1.0))
    once = Evidence(claim.id, (number("m", [0.5, 0.75, 0.85, 0.6]),), (0, 1, 2, 3), seconds=40.0)
    (first,) = decide([claim], {claim.id: once})
    (third,) = decide([claim], {claim.id: replace(once, looks=3)})
    assert (first.verdict, third.verdict) == ("confirmed", "undecided")
    assert third.adjusted == pytest.approx(4 * first.adjusted)


def test_looking_until_something_is_found_raises_few_false_alarms():
    """Six looks, each at five seeds more, at a null on the border of the claim."""
    dice, criterion, free, paid = random.Random(0), Inside("m", high=1.0), 0, 0
    for _ in range(400):
        values = [dice.gauss(1.0, 0.3) for _ in range(30)]
        seen = [Evidence("000-00", (number("m", values[:count]),), tuple(range(count))) for count in range(5, 31, 5)]
        found = [criterion.judge(evidence) for evidence in seen]
        free += any(min(f.p_for, f.p_against) < 0.05 for f in found)
        after = [looked(f, looks) for looks, f in enumerate(found, 1)]
        paid += any(min(f.p_for, f.p_against) < 0.05 for f in after)
    assert paid < 40 < free  # 10 %


def test_what_has_no_number_says_so():
    claim = Claim("000-00", "It is below one.", "us", LongEnough(Inside("m", high=1.0), "steps", 1000, 0.5))
    found = Evidence(claim.id, (number("m", [0.5, math.nan]),), (0, 1), settings={"steps": 10}, seconds=4.0)
    (row,) = decide([claim], {claim.id: found})
    assert "1,000 steps would decide it" in row.would_change
    assert "no number" in row.would_change
