"""The criteria and the claims on made-up losses. test_experiment.py has the search and small maps for real."""

import math
from dataclasses import fields, replace

import pytest

from normlab.experiments.stability.analyse import (
    USABLE,
    WarmupGain,
    _claim,
    _claims,
    _region,
    bracket,
    gradient_spikes,
    judge,
    top,
)
from normlab.experiments.stability.experiment import next_learning_rate
from normlab.experiments.stability.result import JudgedRun, Region

BLANK = dict.fromkeys(f.name for f in fields(JudgedRun))


def made_up(**values):
    """A run that was judged, of Post-Norm at four layers."""
    common = {
        "scheme": "post_norm",
        "depth": 4,
        "steps": 50,
        "gradient_spikes": 0,
        "context_free_loss": 3.0,
        "loss": 2.0,
    }
    return JudgedRun(**{**BLANK, **common, **values})


DESCENT = [5 * math.exp(-i / 30) + 1 for i in range(100)]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (DESCENT, "stable"),
        ([*DESCENT[:50], 40.0, 30.0, 9.0, *DESCENT[53:]], "stable"),  # a spike that came back
        ([*DESCENT[:50], *[4.5] * 50], "spike"),
        ([*DESCENT[:50], *[7.0] * 50], "above"),
        ([*DESCENT[:50], None], "nan"),
        ([*DESCENT[:50], math.nan], "nan"),
        ([], "nan"),
    ],
)
def test_criteria(losses, expected):
    assert judge(losses) == expected
    assert judge(losses, "diverged") == "nan"


def test_gradient_spikes():
    assert gradient_spikes([1.0] * 50) == 0
    assert gradient_spikes([1.0] * 20 + [5.0] + [1.0] * 20 + [9.0] + [1.0] * 5) == 2
    assert gradient_spikes([1.0] * 20 + [None]) == 1


def test_an_island_above_the_first_unstable_rate_is_not_the_region():
    assert bracket({1e-3: True, 1e-2: False, 1e-1: True}) == (1e-3, 1e-2)


@pytest.mark.parametrize(
    ("scheme", "gains", "verdict"),
    [
        ("post_norm", [0.5, 0.6, 0.55], "confirmed"),
        ("post_norm", [0.01, -0.01, 0.0], "refuted"),
        ("post_norm", [0.5, -0.6, 0.1], "undecided"),
        ("pre_norm", [0.5, 0.6, 0.55], "refuted"),
        ("pre_norm", [0.01, -0.01, 0.0], "confirmed"),
        ("pre_norm", [0.5], "undecided"),
        ("post_norm", [0.005, 0.006, 0.004], "refuted"),  # a gain, but far below what counts
        ("pre_norm", [0.005, 0.006, 0.004], "confirmed"),
        ("post_norm", [0.12, 0.14, 0.09], "undecided"),
    ],
)
def test_who_needs_warm_up(scheme, gains, verdict):
    region = Region(scheme, 4, "", 50, [], 0, None, learned=True)
    claim = _claim(region, WarmupGain("nats", gains, USABLE))
    assert claim.verdict == verdict
    assert claim.values == pytest.approx(gains)
    idle = _claim(replace(region, learned=False), WarmupGain("nats", gains, USABLE))
    assert idle.verdict == "undecided"
    assert "below the loss of single tokens" in idle.reason


def test_the_edge_of_learning_is_bracketed_from_above():
    assert top({1e-4: False, 1e-3: True, 1e-2: False, 1e-1: False}) == (1e-3, 1e-2)
    assert top({1e-3: False}) == (None, None)
    learned = {1e-4: False, 1e-3: True, 1e-1: False}
    while (rate := next_learning_rate(learned, 1.5)) is not None:
        learned[rate] = 5e-4 < rate < 0.02
    below, above = top(learned)
    assert below < 0.02 <= above <= 1.6 * below
    assert next_learning_rate({1e-3: False, 1e-2: False}, 1.5) is None


def test_an_edge_that_was_not_found_is_no_number():
    runs = [made_up(warmup=w, lr=lr, seed=s, verdict="stable")
            for w in (0, 9) for lr in (1e-3, 1e-2) for s in (0, 1)]  # fmt: skip
    open_ = _region(runs, "")
    assert {claim.verdict for claim in _claims([open_])[:2]} == {"undecided"}
    runs += [made_up(warmup=w, lr=1e-1, seed=s, verdict="nan", loss=None) for w in (0, 9) for s in (0, 1)]
    wide = _claims([_region(runs, "")])
    assert [claim.values for claim in wide] == [[0.0, 0.0]] * 3
    assert [claim.verdict for claim in wide] == ["undecided", "undecided", "refuted"], "a factor of ten hides a gain"
    runs += [made_up(warmup=w, lr=0.013, seed=s, verdict="nan", loss=None) for w in (0, 9) for s in (0, 1)]
    assert {claim.verdict for claim in _claims([_region(runs, "")])} == {"refuted"}


def test_learning_with_warm_up_only_is_the_strongest_evidence():
    """No seed learns without it: the edge lies below the lowest rate, and counts as that rate."""
    runs = [made_up(warmup=w, lr=lr, seed=s, verdict="stable" if w and lr < 0.02 else "flat",
                    loss=2.0 if w and lr < 0.02 else 3.1)
            for w in (0, 9) for lr in (1e-3, 1e-2, 2e-2) for s in (0, 1, 2)]  # fmt: skip
    claims = {claim.number: claim for claim in _claims([_region(runs, "")])}
    learns = next(claim for number, claim in claims.items() if "rate that learns" in number)
    assert learns.values == pytest.approx([math.log2(10)] * 3)
    assert learns.verdict == "confirmed"
    never = [replace(run, verdict="flat") for run in runs]  # nothing learns: no seed has anything to say of that edge
    assert [c.n for c in _claims([_region(never, "")]) if "that learns" in c.number] == [0]
    turned = [replace(run, warmup=9 - run.warmup) for run in runs]  # learns without it only
    assert [c.verdict for c in _claims([_region(turned, "")]) if "that learns" in c.number] == ["undecided"]


def test_usable_is_measured_from_the_best_mean():
    losses = {1e-3: (2.0, 2.6), 1e-2: (2.5, 2.6)}
    runs = [
        made_up(lr=lr, seed=s, loss=loss, warmup=0, verdict="stable")
        for lr, found in losses.items()
        for s, loss in enumerate(found)
    ]
    assert _region(runs, "").warmups[0].usable == (1e-3, 1e-3)
