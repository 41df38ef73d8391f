"""What a criterion about two arms does where there is nothing to find, and where something was planted.

Many seeds of one cheap scheme are split at random into two arms. The share of splits that is confirmed or refuted is the rate
of false alarms; the share that is confirmed after the planted effect was added to one arm is the power. Both pass through
Holm's correction as the claim does, with the other claims of its page as they stand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from normlab.errors import InputError
from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.criteria import Difference, Judgement
from normlab.experiments.claims.decide import ALPHA, adjust, price, verdict_of
from normlab.experiments.claims.evidence import Evidence, Measurement

SPLITS = 1000
"""With 200 the rate of one null in forty reads above 5 % by the draw alone, where the truth is half of that."""
FEWEST = 20


@dataclass(frozen=True)
class NullCheck:
    """One difference of one claim on a null. Rates are shares of the splits."""

    metric: str
    scheme: str
    seeds: int
    arm_size: int
    splits: int
    false_alarms: float
    effect: float
    power: float
    edge: float = 0.0
    """What was added to the null, so that it lies on the edge of a claim with a margin: there it is hardest to be silent."""

    @property
    def sentence(self) -> str:
        moved = f", moved by {self.edge:.3g} to the edge of the claim" if self.edge else ""
        return (
            f"On a null ({self.seeds} seeds of {self.scheme}, {self.arm_size} against {self.arm_size}, {self.splits} random "
            f"splits{moved}) {self.false_alarms:.1%} are confirmed or refuted; an effect of {self.effect:.3g} is found in "
            f"{self.power:.0%}."
        )


def differences(claim: Claim) -> list[Difference]:
    return [leaf for leaf in claim.criterion.leaves() if isinstance(leaf, Difference)]


def null_check(
    claim: Claim,
    leaf: Difference,
    *,
    null: Evidence,
    page: Mapping[str, Judgement],
    arm_size: int,
    looks: int = 1,
    splits: int = SPLITS,
) -> NullCheck:
    """Split the null's seeds at random; `page` holds the findings of the claim's page, its own included or not.

    `looks`: of the claim's own evidence, whose p costs more with each.
    """
    named = [m for m in null.measurements if m.metric == leaf.metric] or list(null.measurements)
    if len(named) != 1:
        raise InputError(f"the null {null.name} does not hold the metric {leaf.metric!r} of {claim.id}")
    found = named[0]
    values = column(found, leaf)
    if len(values) < FEWEST:
        raise InputError(f"the null {null.name} has {len(values)} seeds; {FEWEST} or more are needed")
    size = min(arm_size, len(values) // 2)
    rng = random.Random(claim.id + leaf.metric)
    limit = critical(claim, page) / price(looks)
    alarms = hits = 0
    for _ in range(splits):
        drawn = rng.sample(values, 2 * size)
        apart = [leaf.minus(a, b) for a, b in zip(drawn[:size], drawn[size:], strict=True)]
        plain = [d + leaf.edge for d in apart]
        planted = [d + leaf.planted for d in apart]
        if leaf.expects_none:  # a null is to be confirmed, and a planted difference is not
            alarms += _verdict(claim, leaf, planted, limit) == "confirmed"
            hits += _verdict(claim, leaf, plain, limit) == "confirmed"
        else:
            alarms += _verdict(claim, leaf, plain, limit) != "undecided"
            hits += _verdict(claim, leaf, planted, limit) == "confirmed"
    rates = (alarms / splits, leaf.effect, hits / splits)
    return NullCheck(leaf.metric, found.arm, len(values), size, splits, *rates, edge=leaf.edge)


def column(found: Measurement, leaf: Difference) -> list[float]:
    """A number for each seed, where the claim takes it; a claim about the end is told the end of the null's curve."""
    if leaf.at is None and found.at:
        return found.column(found.at[-1])
    return found.column(leaf.at if found.at else None)


def critical(claim: Claim, page: Mapping[str, Judgement]) -> float:
    """The p below which the claim is decided beside the rest of its page: Holm's p rises with the claim's own."""
    low, high = 0.0, ALPHA
    for _ in range(20):
        middle = (low + high) / 2
        decided = adjust({**page, claim.id: Judgement((), middle, 1.0)})[claim.id] < ALPHA
        low, high = (middle, high) if decided else (low, middle)
    return low


def _verdict(claim: Claim, leaf: Difference, values: list[float], limit: float) -> str:
    read = leaf.read(values)
    parts = sum(1 for _ in claim.criterion.leaves())  # a claim of several parts fails by the clearest: see `Every`
    found = Judgement((read,), read.p_for, min(1.0, parts * read.p_against))
    return verdict_of(found, 0.0 if min(found.p_for, found.p_against) < limit else 1.0)
