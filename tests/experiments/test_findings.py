"""Sentences from made-up numbers: each says what its test supports and nothing more."""

import math

import pytest

from normlab.experiments.claims import (
    BOUNDED,
    claim,
    claims,
    gradient_centre,
    late_growth,
    magnitude_growth,
    periodicity,
    prune_cost,
)
from normlab.experiments.findings import answer, statement
from normlab.stats import Paired, paired


def row(name, losses, base=None, **changes):
    known = [v for v in losses if v is not None]
    differences = [a - b for a, b in zip(losses, base, strict=True)] if base else [0.0] * len(losses)
    values = {
        "scheme": name, "mean": sum(known) / len(known) if known else None, "losses": dict(enumerate(losses)), "lr": 1e-3,
        "diverged": len(losses) - len(known), "at_edge": None, "cost": None, "learned": True, "parameters_ratio": 1.0,
        "without_tuning_seed": differences[1] if len(differences) > 1 else None,
        "difference": paired([d for d in differences if d is not None]) if known else Paired(0, None),
    }  # fmt: skip
    return {**values, **changes}


BASE = [2.0, 2.1, 2.2]


def test_a_difference_that_the_seeds_support():
    base = row("pre_norm", BASE)
    text = statement(row("peri_norm", [1.90, 2.01, 2.09], BASE), base)
    assert text.startswith("peri_norm ends 0.1000 below pre_norm (95 % interval -0.12")
    assert "paired over 3 seeds, p = 0.0033; -0.0900 without the seed that chose the rate)" in text
    assert "25 % more parameters than pre_norm" in statement(row("mhc", BASE, BASE, parameters_ratio=1.25), base)


def test_no_difference_found():
    text = statement(row("keel", [1.9, 2.2, 2.21], BASE), row("pre_norm", BASE))
    assert text.startswith("No difference found between keel and pre_norm: +0.0033")
    assert "with 3 seeds, differences below about 0.2" in text


def test_suggested_is_not_established():
    test = Paired(2, -0.3, -0.47, -0.12, p=0.03, adjusted=0.09)
    text = statement(row("keel", [1.7, 1.8], [2.0, 2.1], difference=test), row("pre_norm", [2.0, 2.1]))
    assert text.startswith("keel ends 0.3000 below pre_norm")
    assert "suggested, but not established" in text
    rows = [row("keel", [1.7, 1.8], [2.0, 2.1], difference=test), row("pre_norm", [2.0, 2.1])]
    said = answer({"schemes": rows, "baseline": "pre_norm", "setting": {"depth": 4, "dim": 8, "tokens": 10}})
    assert "suggested to be better, not established: keel" in said[1]
    assert "no difference" not in said[1]


def test_one_seed_establishes_nothing():
    text = statement(row("keel", [1.0], [2.0]), row("pre_norm", [2.0]))
    assert "one pair of seeds allows no test, so nothing is established" in text
    rows = [row("keel", [1.0], [2.0]), row("pre_norm", [2.0])]
    said = answer({"schemes": rows, "baseline": "pre_norm", "setting": {"depth": 4, "dim": 8, "tokens": 10}})
    assert said[1] == "The paired test over seeds finds: no test of keel (one pair of seeds allows no test)."


def test_divergence_and_edges_are_said():
    base = row("pre_norm", BASE)
    assert statement(row("no_norm", [None] * 3), base) == "no_norm diverged at every learning rate that was tried."
    assert "the highest one tried" in statement(row("keel", BASE, BASE, at_edge="highest"), base)


def test_survivors_are_named():
    """Whose seeds diverged is said in the answer, and is the reason where no test is left."""
    base, one = row("pre_norm", BASE), paired([-0.1])
    rows = [
        base,
        row("keel", [1.9, None, None], difference=one),
        row("admin", [2.1, 2.3, None], difference=paired([0.1, 0.2])),
    ]
    said = answer({"schemes": rows, "baseline": "pre_norm", "setting": {"depth": 4, "dim": 8, "tokens": 10}})[1]
    assert "no test of keel (2 of 3 seeds of keel diverged)" in said
    assert "2 of 3 seeds of keel, 1 of 3 seeds of admin diverged, and its mean is that of the others" in said


def test_answer_has_three_sentences():
    base = row("pre_norm", BASE, cost={"time": 1.0, "low": 1.0, "high": 1.0})
    rows = [
        row("peri_norm", [1.90, 2.01, 2.09], BASE, cost={"time": 2.0, "low": 1.9, "high": 2.1}),
        base,
        row("keel", [1.9, 2.2, 2.3], BASE),
        row("no_norm", [None] * 3),
    ]
    setting = {"depth": 4, "dim": 8, "tokens": 1000}
    one, two, three = answer({"schemes": rows, "baseline": "pre_norm", "setting": setting})
    assert (
        one
        == "At 4 layers of width 8, 1,000 training tokens and 3 seeds, peri_norm has the lowest held-out loss, 2.0000."
    )
    assert two == ("The paired test over seeds finds: peri_norm better than pre_norm; no difference from pre_norm found for "
                   "keel; no_norm diverged.")  # fmt: skip
    assert three == ("For a training step, peri_norm, the slowest, takes 2.00 times (1.90 to 2.10) as long as pre_norm "
                     "(median and quartiles of steps in turn).")  # fmt: skip
    rows[0]["cost"] = {"time": 1.01, "low": 0.97, "high": 1.04}
    said = answer({"schemes": rows, "baseline": "pre_norm", "setting": setting})
    assert said[2] == "No scheme's training step was seen to take 5 % longer or shorter than pre_norm's."
    rows[0]["cost"] = None
    assert "not measured" in answer({"schemes": rows, "baseline": "pre_norm", "setting": setting})[2]


@pytest.mark.parametrize(
    ("values", "sign", "verdict"),
    [
        ([1.0, 1.1, 0.9], 1, "confirmed"),
        ([1.0, 1.1, 0.9], -1, "refuted"),
        ([1.0, 1.1, 0.9], 0, "confirmed"),
        ([1.0, -1.1, 0.9], 1, "undecided"),
        ([1.0], 1, "undecided"),
        ([], 1, "undecided"),
    ],
)
def test_claims_are_confirmed_refuted_or_undecided(values, sign, verdict):
    found = claim("x", "y", values, sign, [{"scheme": "keel", "learned": True}])
    assert found["verdict"] == verdict
    idle = claim("x", "y", values, sign, [{"scheme": "keel", "learned": False}])
    assert idle["verdict"] == "undecided"
    assert idle["reason"] == "keel did not get below the loss of single tokens"


def test_a_bound_is_tested_against_its_margin():
    about = [{"scheme": "keel", "learned": True}]
    below = claim("x", "y", [0.1, 0.11, 0.09], -1, about, margin=BOUNDED)
    assert (below["verdict"], below["mean"]) == ("confirmed", pytest.approx(0.1))
    assert below["low"] < 0.1 < below["high"] < BOUNDED
    assert claim("x", "y", [0.5, 0.51, 0.49], -1, about, margin=BOUNDED)["verdict"] == "refuted"
    assert claim("x", "y", [0.1, 0.3, 0.2], -1, about, margin=BOUNDED)["verdict"] == "undecided"


def test_what_learned_nothing_says_so():
    base = row("pre_norm", BASE)
    assert "learned frequencies, at most" in statement(row("keel", BASE, BASE, learned=False), base)
    flat = row("pre_norm", BASE, learned=False)
    said = answer({"schemes": [flat], "baseline": "pre_norm", "setting": {"depth": 4, "dim": 8, "tokens": 10}})
    assert "no scheme learned more than frequencies" in said[0]
    test = Paired(3, 0.003, 0.002, 0.004)  # no p: noise around the frequencies
    both = statement(row("keel", BASE, BASE, learned=False, difference=test), flat)
    assert "neither learned more than the frequencies of tokens, so nothing is established" in both


def test_every_claim_of_the_issue_is_made():
    record = {"magnitude": [1.0] * 49, "gradient_share": [1 / 24] * 24, "prune": [2.0 + k for k in range(13)]}
    names = ("pre_norm", "block_attn_res", "ln_scaling", "mix_norm")
    curve = {"step": [1, 2], "loss": [2.5, 2.0], "decay_start": 1}
    more = {"per_seed": {0: record, 1: record}, "curve": dict.fromkeys(range(3), curve), "period": 3}
    made = claims({name: row(name, BASE, **more) for name in names}, 24)
    said = " ".join(c["claim"] for c in made)
    for words in ("grows with depth", "lean to early", "stays bounded", "periodic in its blocks", "spreads gradients",
                  "widens in the decay", "ln_scaling changes the prune", "mix_norm changes the prune"):  # fmt: skip
        assert words in said
    assert sum("24 layers" in c["number"] for c in made) == 4


def gaps(*, begin, end):
    """A claim about a decay from `begin` to `end` above Pre-Norm, in three seeds that differ a little."""
    record = {"per_seed": {}, "period": None}
    curves = [{"step": [1, 2], "loss": [2.5 + begin + e, 2.0 + end], "decay_start": 1} for e in (0.0, 0.01, 0.02)]
    plain = {"step": [1, 2], "loss": [2.5, 2.0], "decay_start": 1}
    rows = {
        "post_norm": row("post_norm", BASE, curve=dict.fromkeys(range(3), curves[0]), **record),  # any other baseline
        "pre_norm": row("pre_norm", BASE, curve=dict.fromkeys(range(3), plain), **record),
        "block_attn_res(blocks=4)": row("block_attn_res(blocks=4)", BASE, curve=dict(enumerate(curves)), **record),
    }
    return next(c for c in claims(rows, 4) if "widens" in c["claim"])


def test_a_lead_that_widens_is_a_lead_over_pre_norm():
    widens = gaps(begin=-0.1, end=-0.3)
    assert widens["verdict"] == "confirmed"
    assert widens["values"] == pytest.approx([-0.2, -0.21, -0.22])
    assert "block_attn_res(blocks=4)" in widens["claim"]
    assert gaps(begin=-0.3, end=-0.1)["verdict"] == "refuted"
    behind = gaps(begin=0.2, end=0.05)
    assert (behind["verdict"], "no lead that could widen" in behind["reason"]) == ("undecided", True)


def test_the_numbers_of_the_claims():
    assert magnitude_growth({"magnitude": [1.0] * 4 + [2.0] * 4 + [math.e] * 2}) == pytest.approx(1.0)
    assert late_growth({"magnitude": [0.1] * 2 + [1.0] * 4 + [math.e] * 2}) == pytest.approx(1.0)
    assert gradient_centre({"gradient_share": [1.0, 0.0, 0.0]}) == -0.5
    assert gradient_centre({"gradient_share": [0.25] * 4}) == pytest.approx(0)
    assert prune_cost({"prune": [1.0, 1.5, 3.0], "skip": [0.1] * 8}, 2) == 2.0
    assert prune_cost({"prune": [1.0, 1.5, 3.0]}, 3) is None
    assert magnitude_growth({}) is late_growth({}) is gradient_centre({}) is prune_cost({}, 1) is None


def test_periodicity_finds_the_block_and_nothing_else():
    saw = [v for _ in range(8) for v in (1.0, 9.0, 2.0, 9.0, 4.0, 9.0)] + [3.0]  # attention reads 1, 2, 4 in each block
    assert periodicity({"magnitude": saw}, 3) > 1
    assert periodicity({"magnitude": saw}, 4) < 0
    steady = [math.sqrt(1 + k) for k in range(49)]
    assert periodicity({"magnitude": steady}, 3) < 0
    assert periodicity({"magnitude": [1.0] * 49}, 3) is periodicity({}, 3) is None
