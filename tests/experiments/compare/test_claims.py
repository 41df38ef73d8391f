"""The claims of the field, from made-up records: confirmed, refuted or undecided by what the seeds support."""

import math

import pytest

from normlab.experiments.compare.claims import (
    claim,
    claims,
    gradient_centre,
    magnitude_growth,
    output_growth,
    periodicity,
    prune_cost,
)
from normlab.experiments.compare.result import Curve
from normlab.experiments.runs.records import LayerRecord
from tests.experiments.compare.rows import BASE, row


def record(**lists):
    return LayerRecord(step=1, **lists)


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
    found = claim("x", "y", values, sign, [row("keel", BASE)])
    assert found.verdict == verdict
    idle = claim("x", "y", values, sign, [row("keel", BASE, learned=False)])
    assert idle.verdict == "undecided"
    assert idle.reason == "keel did not get below the loss of single tokens"


def test_a_bound_is_tested_against_its_margin():
    about = [row("keel", BASE)]
    below = claim("x", "y", [0.1, 0.11, 0.09], -1, about, margin=0.21)
    assert (below.verdict, below.mean) == ("confirmed", pytest.approx(0.1))
    assert below.low < 0.1 < below.high < 0.21
    assert claim("x", "y", [0.5, 0.51, 0.49], -1, about, margin=0.21).verdict == "refuted"
    assert claim("x", "y", [0.1, 0.3, 0.2], -1, about, margin=0.21).verdict == "undecided"


def test_every_claim_is_made():
    found = record(
        magnitude=[1.0] * 49, output=[1.0] * 48, gradient_share=[1 / 24] * 24, prune=[2.0 + k for k in range(13)]
    )
    names = ("pre_norm", "block_attn_res", "ln_scaling", "mix_norm")
    curve = Curve([1, 2], [2.5, 2.0], 1)
    more = {"per_seed": {0: found, 1: found}, "curve": dict.fromkeys(range(3), curve), "period": 3}
    made = claims({name: row(name, BASE, **more) for name in names}, 24)
    said = " ".join(c.claim for c in made)
    for words in ("grows with depth", "lean to early", "put out grows less", "periodic in its blocks", "spreads gradients",
                  "widens in the decay", "ln_scaling changes the prune", "mix_norm changes the prune"):  # fmt: skip
        assert words in said
    assert sum("24 layers" in c.number for c in made) == 4


def gaps(*, begin, end, steps=2000):
    """A claim about a decay from `begin` to `end` above Pre-Norm, in three seeds that differ a little."""
    none = {"per_seed": {}, "period": None}
    curves = [Curve([1, steps], [2.5 + begin + e, 2.0 + end], 1) for e in (0.0, 0.01, 0.02)]
    plain = Curve([1, steps], [2.5, 2.0], 1)
    rows = {
        "post_norm": row("post_norm", BASE, curve=dict.fromkeys(range(3), curves[0]), **none),  # any other baseline
        "pre_norm": row("pre_norm", BASE, curve=dict.fromkeys(range(3), plain), **none),
        "block_attn_res(blocks=4)": row("block_attn_res(blocks=4)", BASE, curve=dict(enumerate(curves)), **none),
    }
    return next(c for c in claims(rows, 4) if "widens" in c.claim)


def test_a_lead_that_widens_is_a_lead_over_pre_norm():
    widens = gaps(begin=-0.1, end=-0.3)
    assert widens.verdict == "confirmed"
    assert widens.values == pytest.approx([-0.2, -0.21, -0.22])
    assert "block_attn_res(blocks=4)" in widens.claim
    assert gaps(begin=-0.3, end=-0.1).verdict == "refuted"
    early = gaps(begin=-0.3, end=-0.1, steps=200)
    assert (early.verdict, early.reason) == ("undecided", "200 steps are early training; 1000 or more are needed")
    behind = gaps(begin=0.2, end=0.05)
    assert (behind.verdict, "no lead that could widen" in behind.reason) == ("undecided", True)


def test_the_numbers_of_the_claims():
    assert magnitude_growth(record(magnitude=[1.0] * 4 + [2.0] * 4 + [math.e] * 2)) == pytest.approx(1.0)
    reads_only = record(magnitude=[1.0] * 4 + [2.0] * 4, output=[1.0] * 6 + [math.e] * 2)
    assert output_growth(reads_only) == pytest.approx(1.0), "what is read does not enter"
    assert gradient_centre(record(gradient_share=[1.0, 0.0, 0.0])) == -0.5
    assert gradient_centre(record(gradient_share=[0.25] * 4)) == pytest.approx(0)
    assert prune_cost(record(prune=[1.0, 1.5, 3.0], skip=[0.1] * 8), 2) == 2.0
    assert prune_cost(record(prune=[1.0, 1.5, 3.0]), 3) is None
    assert (
        magnitude_growth(record())
        is output_growth(record())
        is gradient_centre(record())
        is prune_cost(record(), 1)
        is None
    )


def test_periodicity_finds_the_block_and_nothing_else():
    saw = [v for _ in range(8) for v in (1.0, 9.0, 2.0, 9.0, 4.0, 9.0)]  # attention puts out 1, 2, 4 in each block
    assert periodicity(record(output=saw), 3) > 1
    assert periodicity(record(output=saw), 4) < 0
    steady = [math.sqrt(1 + k) for k in range(48)]
    assert periodicity(record(output=steady), 3) < 0
    assert periodicity(record(output=[1.0] * 48), 3) is periodicity(record(), 3) is None
