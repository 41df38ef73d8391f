"""How findings become verdicts: Holm's correction over the claims of a page, and sentences made from the numbers.

Where seeds were added after a look, p doubles with each (`Evidence.looks`).

A claim whose experiment does not carry its sentence (`Claim.corrected`) has its number and no verdict. It still counts among
the tests of its page: it was looked at.

A page is a family of claims (those of one seed). Exact claims have p = 0 and cost the others nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from normlab.experiments.claims.bench import measures
from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.criteria import Judgement, NotMeasured, Reading
from normlab.experiments.claims.evidence import Evidence, on_one_core
from normlab.stats import Paired, holm, t_cdf, t_reach

Verdict = Literal["confirmed", "refuted", "undecided", "misprinted", "not measured", "no verdict"]
VERDICTS: tuple[Verdict, ...] = ("confirmed", "refuted", "misprinted", "undecided", "not measured", "no verdict")
ALPHA = 0.05
MOST_SEEDS = 100_000
"""More than these decide nothing: a longer run would."""
NOT_CARRIED = "The experiment does not carry the sentence."
NO_NUMBER = "Some runs never get to what is asked, and have no number."


@dataclass(frozen=True)
class Decision:
    """A claim with its verdict, which follows from the finding and from the other claims of its page."""

    claim: Claim
    verdict: Verdict
    sentence: str
    would_change: str
    finding: Judgement | None = None
    adjusted: float | None = None
    """p after Holm's correction."""
    evidence: Evidence | None = None

    @property
    def leading(self) -> Reading | None:
        """The number that stands for the claim in a table: the least certain of those that decide."""
        if self.finding is None or not self.finding.readings:
            return None
        readings = self.finding.readings
        key = (lambda r: r.p_for) if self.verdict != "refuted" else (lambda r: -r.p_against)
        return readings[-1] if self.finding.misprint else max(readings, key=key)


def decide(claims: Sequence[Claim], evidence: Mapping[str, Evidence]) -> list[Decision]:
    """Every claim of one page. A claim without evidence, or without a measurement, is not measured."""
    findings = {
        claim.id: looked(claim.criterion.judge(evidence[claim.evidence]), evidence[claim.evidence].looks)
        for claim in claims
        if claim.measurable and claim.evidence in evidence
    }
    adjusted = adjust(findings)
    still_open = sum(adjusted[name] >= ALPHA and not finding.lacking for name, finding in findings.items())
    return [
        _decision(claim, findings.get(claim.id), adjusted.get(claim.id), evidence.get(claim.evidence), still_open)
        for claim in claims
    ]


def looked(finding: Judgement, looks: int) -> Judgement:
    """Seeds that are added until something is decided decide too often, so p doubles with each look after the first.

    False alarms stay below 5 % + 2.5 % + ..., which is 10 %, however often one looks.
    """
    times = price(looks)
    return replace(finding, p_for=min(1.0, times * finding.p_for), p_against=min(1.0, times * finding.p_against))


def price(looks: int) -> float:
    return 2.0 ** (looks - 1)


def adjust(findings: Mapping[str, Judgement]) -> dict[str, float]:
    """Holm's p of each finding: of holding or of failing, whichever is clearer.

    A finding whose runs are too short to decide can raise no false alarm, and does not count among the tests.
    """
    tests = {name: Paired(0, None, p=min(f.p_for, f.p_against)) for name, f in findings.items() if not f.lacking}
    found = {name: 1.0 if test.adjusted is None else test.adjusted for name, test in holm(tests).items()}
    return {name: found.get(name, 1.0) for name in findings}


def verdict_of(finding: Judgement, adjusted: float) -> Verdict:
    if adjusted >= ALPHA:
        return "undecided"
    if finding.p_for <= finding.p_against:
        return "misprinted" if finding.misprint else "confirmed"
    return "refuted"


def _decision(
    claim: Claim, finding: Judgement | None, adjusted: float | None, evidence: Evidence | None, still_open: int
) -> Decision:
    if isinstance(claim.criterion, NotMeasured):
        return Decision(
            claim, "not measured", claim.criterion.reason, f"This would decide it: {claim.criterion.would}."
        )
    if finding is None or adjusted is None or evidence is None:
        return Decision(claim, "not measured", *_not_run(claim))
    if claim.withdrawn and claim.corrected is not None:
        numbers = "; ".join(_number(r) for r in finding.readings)
        text = f"{NOT_CARRIED} Measured: {numbers}."
        return Decision(claim, "no verdict", text, claim.corrected.decides, finding, evidence=evidence)
    verdict = verdict_of(finding, adjusted)
    said = sentence(finding)
    return Decision(
        claim, verdict, said, _would_change(verdict, finding, still_open, evidence), finding, adjusted, evidence
    )


def _not_run(claim: Claim) -> tuple[str, str]:
    """Why there is no number, and what would give one."""
    known = measures().get(claim.evidence)
    if known is None:
        return "no evidence is on file", f"`{claim.command}` measures it."
    cost = on_one_core(known.cost)
    return f"it has not been run on the code as it stands: {cost}", f"`{claim.command}` measures it, {cost}."


# -- sentences ----------------------------------------------------------------------------------------------------------
def sentence(finding: Judgement) -> str:
    """The numbers that decide, then those beside them."""
    shown = finding.readings[:3]
    more = len(finding.readings) - len(shown)
    text = "; ".join(_said(r) for r in shown) + (f"; and {more} more" if more else "")
    if finding.beside:
        text += ". Elsewhere: " + "; ".join(_said(r) for r in finding.beside)
    return text + "."


def _said(r: Reading) -> str:
    if math.isnan(r.estimate):
        return _number(r)
    fits = {True: "as wanted", False: "outside", None: "open"}[r.holds]
    return f"{_number(r)}, {wanted(r)}: {fits}"


def _number(r: Reading) -> str:
    if math.isnan(r.estimate):
        return f"{r.label} is not a number in some seed"
    spread = ""
    if r.low is not None and r.high is not None and r.high > r.low:
        spread = f" ({_g(r.low)} to {_g(r.high)}, n = {r.n})"
    return f"{r.label} is {_g(r.estimate)}{spread}"


def wanted(r: Reading) -> str:
    """The range in which the claim holds, in words."""
    low, high = r.wanted
    if math.isinf(low):
        return f"wanted below {_g(high)}"
    if math.isinf(high):
        return f"wanted above {_g(low)}"
    if high - low < 1e-3 * max(abs(low), abs(high)) and high > 0:
        return f"wanted {_g((low + high) / 2)} +- {_g((high - low) / 2)}"
    return f"wanted between {_g(low)} and {_g(high)}"


def _would_change(verdict: Verdict, finding: Judgement, still_open: int, evidence: Evidence) -> str:
    """`still_open`: claims of the page that are undecided; Holm multiplies the clearest of them by their number."""
    if verdict != "undecided":
        read = {"confirmed": "leaves", "misprinted": "leaves", "refuted": "enters"}[verdict]
        lead = finding.readings[-1]
        other = "An interval" if lead.low != lead.high else "A value"
        return f"{other} of {lead.label} that {read} the range ({wanted(lead)})."
    if finding.lacking:
        none = [NO_NUMBER] if any(math.isnan(r.estimate) for r in finding.readings) else []
        return " ".join([*finding.lacking, *none])
    seeds = seeds_needed(finding, price(evidence.looks + 1) * max(1, still_open))
    if any(math.isnan(r.estimate) for r in finding.readings):
        return f"{NO_NUMBER} Longer ones may: {evidence.twice}."
    if seeds is None:
        return f"One seed has no interval: two or more are needed, {on_one_core(2 * evidence.seconds_per_seed)}."
    if math.isinf(seeds):
        near = "The mean lies so near to the border of the range that no number of seeds decides it"
        return f"{near}; a longer run may ({evidence.twice})."
    cost = on_one_core(seeds * evidence.seconds_per_seed)
    return f"About {_rough(seeds)} seeds in place of {_least(finding)}, if the mean stays: {cost}."


def _rough(count: float) -> str:
    """Two digits: more would be no more than chance."""
    return f"{float(f'{count:.2g}'):,.0f}"


def _least(finding: Judgement) -> int:
    return min((r.n for r in finding.readings if r.low is not None), default=0)


def seeds_needed(finding: Judgement, times: float = 1.0) -> float | None:
    """How many seeds would decide if mean and spread stay; None for one seed, infinite where a mean lies on the border.

    `times`: the factor of Holm's correction, and of the next look. A mean outside its range refutes by itself; else every
    part must be inside.
    """
    random = [r for r in finding.readings if min(r.p_for, r.p_against) > 0]  # what is exact asks for no seeds
    if any(r.low is None or r.high is None or math.isnan(r.estimate) for r in random):
        return None
    outside = [r for r in random if not r.wanted[0] <= r.estimate <= r.wanted[1]]
    if outside:
        needed = min(_enough(r, times * len(finding.readings)) for r in outside)
    else:
        needed = max((_enough(r, times) for r in random), default=math.inf)
    return max(needed, float(_least(finding) + 1))


def _enough(r: Reading, times: float) -> float:
    """Seeds at which the mean of this reading is on its side of the nearest border, with `times` p below 0.05."""
    assert r.low is not None
    assert r.high is not None
    spread = (r.high - r.low) / 2 / t_reach(r.n) * math.sqrt(r.n)
    distance = min((abs(r.estimate - end) for end in r.wanted if math.isfinite(end)), default=math.inf)
    if distance == 0:
        return math.inf
    n = r.n
    while n < MOST_SEEDS:
        if spread == 0 or times * 2 * (1 - t_cdf(distance * math.sqrt(n) / spread, min(n - 1, 500))) < ALPHA:
            return n
        n = max(n + 1, round(1.02 * n))
    return math.inf


def _g(value: float) -> str:
    return f"{value + 0.0:.4g}"  # no -0
