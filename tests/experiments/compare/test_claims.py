"""The claims of the field, from made-up records: confirmed, refuted or undecided by what the seeds support."""

import math
import random
from dataclasses import replace

import pytest

from normlab.experiments.compare.claims import (
    BOUNDED,
    claim,
    claims,
    gradient_centre,
    late_growth,
    output_growth,
    periodicity,
    prune_cost,
    settle,
    stream_growth,
)
from normlab.experiments.compare.result import LossCurve
from normlab.experiments.runs.records import LayerRecord
from tests.experiments.compare.rows import BASE, row


def record(**lists):
    return LayerRecord(step=1, **lists)


def alone(draft):
    """The claim of a page that has no other."""
    ((found,),) = settle([[draft]])
    return found


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
    found = alone(claim("x", "y", values, sign, [row("keel", BASE)]))
    assert found.verdict == verdict
    idle = alone(claim("x", "y", values, sign, [row("keel", BASE, learned=False)]))
    assert idle.verdict == "undecided"
    assert idle.reason == "keel did not get below the loss of single tokens"


def test_a_bound_is_tested_against_its_margin():
    about = [row("keel", BASE)]
    below = alone(claim("x", "y", [0.1, 0.11, 0.09], -1, about, margin=BOUNDED))
    assert (below.verdict, below.mean) == ("confirmed", pytest.approx(0.1))
    assert below.low < 0.1 < below.high < BOUNDED
    assert alone(claim("x", "y", [0.5, 0.51, 0.49], -1, about, margin=BOUNDED)).verdict == "refuted"
    assert alone(claim("x", "y", [0.1, 0.3, 0.2], -1, about, margin=BOUNDED)).verdict == "undecided"


def test_many_claims_on_a_page_make_each_harder():
    """Holm: p = 0.02 alone is significant, beside three others with no effect it is not, wherever they stand."""
    weak = claim("x", "y", [1.0, 1.5, 0.45], 1, [row("keel", BASE)])
    assert 0.01 < weak.test.p < 0.1
    strong = claim("x", "y", [1.0, 1.01, 0.99], 1, [row("keel", BASE)])
    nothing = claim("x", "y", [1.0, -1.1, 0.1], 1, [row("keel", BASE)])
    (first,), (second, *_) = settle([[strong], [weak, nothing, nothing]])
    assert (first.verdict, second.verdict) == ("confirmed", "undecided")
    assert second.adjusted == pytest.approx(3 * weak.test.p)
    assert first.adjusted == pytest.approx(4 * strong.test.p)


def test_every_claim_is_made():
    found = record(
        magnitude=[1.0] * 49, output=[1.0] * 48, gradient_share=[1 / 24] * 24, prune=[2.0 + k for k in range(13)]
    )
    names = ("pre_norm", "block_attn_res", "ln_scaling", "mix_norm")
    curve = LossCurve([1, 2000], [2.5, 2.0], 1)
    more = {
        "per_seed": {0: found, 1: found},
        "at_start": {0: found, 1: found},
        "curve": dict.fromkeys(range(3), curve),
        "period": 3,
    }
    made = claims({name: row(name, BASE, **more) for name in names}, 24)
    said = " ".join(c.text for c in made)
    for words in ("grows with depth", "put out more", "lean to early", "stay bounded", "are periodic", "spreads gradients",
                  "widens in the decay", "ln_scaling changes the prune", "mix_norm changes the prune"):  # fmt: skip
        assert words in said
    assert sum("24 layers" in c.number for c in made) == 4


def gaps(*, begin, end):
    """A claim about a decay from `begin` to `end` above Pre-Norm, in three seeds that differ a little."""
    none = {"per_seed": {}, "at_start": {}, "period": None}
    curves = [LossCurve([1, 2000], [2.5 + begin + e, 2.0 + end], 1) for e in (0.0, 0.01, 0.02)]
    plain = LossCurve([1, 2000], [2.5, 2.0], 1)
    rows = {
        "post_norm": row("post_norm", BASE, curve=dict.fromkeys(range(3), curves[0]), **none),  # any other baseline
        "pre_norm": row("pre_norm", BASE, curve=dict.fromkeys(range(3), plain), **none),
        "block_attn_res(blocks=4)": row("block_attn_res(blocks=4)", BASE, curve=dict(enumerate(curves)), **none),
    }
    return alone(next(c for c in claims(rows, 4) if "widens" in c.text))


def test_a_lead_that_widens_is_a_lead_over_pre_norm():
    widens = gaps(begin=-0.1, end=-0.3)
    assert widens.verdict == "confirmed"
    assert widens.values == pytest.approx([-0.2, -0.21, -0.22])
    assert "block_attn_res(blocks=4)" in widens.claim
    assert gaps(begin=-0.3, end=-0.1).verdict == "refuted"
    behind = gaps(begin=0.2, end=0.05)
    assert (behind.verdict, "no lead that could widen" in behind.reason) == ("undecided", True)


def test_the_numbers_of_the_claims():
    assert stream_growth(record(magnitude=[1.0] * 4 + [2.0] * 4 + [math.e] * 2)) == pytest.approx(1.0)
    assert output_growth(record(output=[1.0] * 4 + [2.0] * 4 + [math.e] * 2)) == pytest.approx(1.0)
    assert late_growth(record(output=[0.1] * 2 + [1.0] * 4 + [math.e] * 2)) == pytest.approx(1.0)
    assert gradient_centre(record(gradient_share=[1.0, 0.0, 0.0])) == -0.5
    assert gradient_centre(record(gradient_share=[0.25] * 4)) == pytest.approx(0)
    assert prune_cost(record(prune=[1.0, 1.5, 3.0], skip=[0.1] * 8), 2) == 2.0
    assert prune_cost(record(prune=[1.0, 1.5, 3.0]), 3) is None
    empty = (stream_growth(record()), output_growth(record()), late_growth(record()), gradient_centre(record()))
    assert {*empty, prune_cost(record(), 1)} == {None}


def test_periodicity_finds_the_block_and_nothing_else():
    saw = [v for _ in range(8) for v in (1.0, 9.0, 2.0, 9.0, 4.0, 9.0)]  # attention adds 1, 2, 4 in each block
    assert periodicity(record(output=saw), 3) > 1
    assert periodicity(record(output=saw), 4) < 0
    steady = [math.sqrt(1 + k) for k in range(48)]
    assert periodicity(record(output=steady), 3) < 0
    assert periodicity(record(output=[1.0] * 48), 3) is periodicity(record(), 3) is None


def test_what_is_there_at_step_0_is_no_finding():
    """AttnRes reads means, so its reads are small from the start: with the same outputs nothing is confirmed."""
    rng = random.Random(1)

    def noisy(slope):
        return [math.exp(slope * k / 48 + rng.gauss(0, 0.05)) for k in range(48)]

    start = {s: record(output=noisy(-2.0), magnitude=[1 / (k + 1) for k in range(49)]) for s in range(5)}
    end = {s: record(output=noisy(-2.0), magnitude=[1 / (k + 1) for k in range(49)]) for s in range(5)}
    curve = dict.fromkeys(range(5), LossCurve([1, 2000], [2.5, 2.0], 1))
    flat = {s: record(output=noisy(0.0), magnitude=[1.0] * 49) for s in range(5)}
    both = {s: record(output=noisy(0.0), magnitude=[1.0] * 49) for s in range(5)}
    rows = {
        "pre_norm": row("pre_norm", [2.0] * 5, per_seed=both, at_start=flat, curve=curve),
        "attn_res": row("attn_res", [2.0] * 5, per_seed=end, at_start=start, curve=curve),
    }
    (said,) = settle([claims(rows, 24)])
    less = next(c for c in said if "grow less" in c.claim)
    assert less.verdict == "undecided"
    assert abs(less.mean) < 0.1


def null_rows(rng, planted=0.0):
    """Two names for one scheme: five other seeds each. `planted`: outputs of the one grow less by this much."""

    def records(extra=0.0):
        return {
            s: record(
                output=[math.exp(rng.gauss(extra * k / 48, 0.3)) for k in range(48)],
                magnitude=[math.exp(rng.gauss(0, 0.3)) for _ in range(49)],
                gradient_share=[abs(rng.gauss(1, 0.3)) / 24 for _ in range(24)],
            )
            for s in range(5)
        }

    def curve():
        return {s: LossCurve([1, 2000], [2.5 + rng.gauss(0, 0.02), 2.0 + rng.gauss(0, 0.02)], 1) for s in range(5)}

    losses = [2.0 + rng.gauss(0, 0.02) for _ in range(5)]
    more = {"curve": curve(), "at_start": records(), "period": 3}
    return {
        "pre_norm": row("pre_norm", losses, per_seed=records(), **more),
        "block_attn_res": row("block_attn_res", losses, per_seed=records(-planted), **{**more, "curve": curve()}),
    }


COMPARING = ("grow less", "spreads gradients", "widens")


def decided(planted, trials=200):
    rng = random.Random(0)
    found = dict.fromkeys(COMPARING, 0)
    for _ in range(trials):
        (said,) = settle([claims(null_rows(rng, planted), 24)])
        for words in COMPARING:
            found[words] += next(c for c in said if words in c.claim).verdict != "undecided"
    return {words: count / trials for words, count in found.items()}


def test_a_null_is_confirmed_or_refuted_in_at_most_one_of_twenty():
    """The same scheme under two names, other seeds: for every claim that compares two arms."""
    rates = decided(planted=0.0)
    assert max(rates.values()) <= 0.05, rates


def test_a_planted_effect_is_found():
    assert decided(planted=1.5)["grow less"] > 0.8


def test_early_training_decides_nothing_about_a_whole_one():
    rng = random.Random(0)
    rows = null_rows(rng, planted=3.0)
    short = {
        name: replace(r, curve={s: replace(c, step=[1, 200]) for s, c in r.curve.items()}) for name, r in rows.items()
    }
    (late,), (early,) = ([c for c in settle([claims(r, 24)])[0] if "grow less" in c.claim] for r in (rows, short))
    assert (late.verdict, early.verdict) == ("confirmed", "undecided")
    assert early.reason == "200 steps are early training; 1000 or more are needed"
