"""How numbers become a finding: the few kinds of criterion, each a pure function of the evidence.

    Equals          every value lies within a tolerance of the stated one
    Inside          the 95 % interval of a mean over seeds lies inside a range
    Exponent        the same for a slope that is fitted to each seed's curve
    Difference      the same for one arm minus another, seed by seed: the criterion of every claim about two arms
    Construction    true by algebra; the residual is at rounding level and a test of ours states it
    Misprint        what is printed is refuted, and what it should have been is confirmed
    Every           all of several parts
    Scoped          the claim where it is made, and beside it where it does not hold
    NotMeasured     with the reason

`conditions` has two more: what a run must have before it may decide.

A finding has two p-values: of "the claim fails" (small: it holds) and of "the claim holds" (small: it fails). Both are
two-sided, so that p < 0.05 says that the 95 % interval is on one side.
"""

from __future__ import annotations

import math
import re
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from normlab.experiments.claims.evidence import Evidence, Measurement
from normlab.stats import power_law, slope, t_cdf, t_reach

Fit = Literal["power", "exponential", "linear"]


@dataclass(frozen=True)
class Reading:
    """One number beside the range in which the claim holds."""

    label: str
    estimate: float
    low: float | None
    high: float | None
    wanted: tuple[float, float]
    n: int
    p_for: float
    p_against: float

    @property
    def holds(self) -> bool | None:
        """Before any correction for other claims."""
        return True if self.p_for < 0.05 else False if self.p_against < 0.05 else None

    @property
    def number(self) -> str:
        """`-0.072 (-0.1 to -0.045)`."""
        if math.isnan(self.estimate):
            return "no number in some seed"
        middle = f"{self.estimate + 0.0:.3g}"  # no -0
        if self.low is None or self.high is None or self.low == self.high:
            return middle
        return f"{middle} ({self.low + 0.0:.3g} to {self.high + 0.0:.3g})"


@dataclass(frozen=True)
class Judgement:
    """What a criterion says of the evidence; `readings` are drawn, the two p-values decide."""

    readings: tuple[Reading, ...]
    p_for: float
    p_against: float
    misprint: bool = False
    """Confirmed is then called misprinted: the printed form fails and the right one holds."""
    beside: tuple[Reading, ...] = ()
    """Where the claim is not made: told, not decisive."""
    lacking: tuple[str, ...] = ()
    """What runs that are too short to decide lack (see `conditions`)."""


class Criterion(ABC):
    """Fixed before the run. `text` is the criterion in words."""

    @abstractmethod
    def text(self) -> str: ...

    @abstractmethod
    def judge(self, evidence: Evidence) -> Judgement: ...

    def leaves(self) -> Iterator[Criterion]:
        """The criteria that read numbers."""
        yield self


# -- one number -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Equals(Criterion):
    """Every value, at every place and in every seed, within `tolerance` of `value`. No statistics: for what is exact."""

    metric: str
    value: float = 0.0
    tolerance: float = 0.0
    arm: str = ""
    relative: bool = False

    def text(self) -> str:
        unit = " times it" if self.relative else ""
        return f"every {_of(self.metric, self.arm)} is {_g(self.value)} to within {_g(self.tolerance)}{unit}"

    def judge(self, evidence: Evidence) -> Judgement:
        reach = self.tolerance * (abs(self.value) if self.relative else 1.0)
        values = [v for row in evidence.find(self.metric, self.arm).values for v in row]
        worst = max(values, key=lambda v: math.inf if math.isnan(v) else abs(v - self.value))
        inside = not math.isnan(worst) and abs(worst - self.value) <= reach
        label = _of(self.metric, self.arm)
        wanted = (self.value - reach, self.value + reach)
        return _single(Reading(label, worst, min(values), max(values), wanted, len(values), *_certain(inside)))


@dataclass(frozen=True)
class Inside(Criterion):
    """The mean over seeds lies between `low` and `high`, with its 95 % interval."""

    metric: str
    low: float = -math.inf
    high: float = math.inf
    arm: str = ""
    at: float | None = None

    def text(self) -> str:
        return f"{_of(self.metric, self.arm, self.at)} lies {_range(self.low, self.high)}, with the 95 % interval over seeds"

    def judge(self, evidence: Evidence) -> Judgement:
        found = evidence.find(self.metric, self.arm)
        label = _of(self.metric, self.arm, self.at)
        return _single(reading(label, found.column(self.at), (self.low, self.high), exact=found.exact))


@dataclass(frozen=True)
class Exponent(Criterion):
    """The slope of each seed's curve over the places between `start` and `stop`; `fit` says in which logarithms.

    power: log y over log x.  exponential: log y over x.  linear: y over x.
    """

    metric: str
    low: float = -math.inf
    high: float = math.inf
    arm: str = ""
    fit: Fit = "power"
    start: float = -math.inf
    stop: float = math.inf

    def text(self) -> str:
        return f"{self._label()} lies {_range(self.low, self.high)}, with the 95 % interval over seeds"

    def _label(self) -> str:
        kind = {"power": "the exponent", "exponential": "the rate of the logarithm", "linear": "the slope"}[self.fit]
        bounds = (self.start, self.stop)
        where = "" if bounds == (-math.inf, math.inf) else f", fitted {_range(*bounds)}"
        return f"{kind} of {_of(self.metric, self.arm)}{where}"

    def judge(self, evidence: Evidence) -> Judgement:
        found = evidence.find(self.metric, self.arm)
        slopes = self.slopes(found)
        return _single(reading(self._label(), slopes, (self.low, self.high), exact=found.exact))

    def slopes(self, found: Measurement) -> list[float]:
        kept = [i for i, x in enumerate(found.at) if self.start <= x <= self.stop]
        xs = [found.at[i] for i in kept]
        rows = [[row[i] for i in kept] for row in found.values]
        if self.fit == "power":
            return [power_law(xs, ys) for ys in rows]
        if self.fit == "exponential":
            return [slope(xs, [math.log(y) if y > 0 else math.nan for y in ys]) for ys in rows]
        return [slope(xs, ys) for ys in rows]


# -- two arms ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Difference(Criterion):
    """`arm` minus `against`, paired by seed: below -margin (sign -1), above it (+1), or within it (0).

    With a negative margin the claim is "not worse by more than that".
    `ratio`: of logarithms, so that margin and effect are factors' logs. `effect` is the size that is planted when the
    criterion is tested on a null (see `nulls`), and `null` the evidence with null seeds ("null-" and the metric unless told).
    """

    metric: str
    arm: str
    against: str
    sign: Literal[-1, 0, 1]
    effect: float
    margin: float = 0.0
    at: float | None = None
    ratio: bool = False
    null: str = ""
    grid: float = 0.0
    """Both readings were taken in steps of this (in logarithms for a ratio), which is spread that equal seeds do not show."""

    def __post_init__(self) -> None:
        if self.effect <= 0 or (self.sign == 0 and self.margin <= 0):
            raise ValueError(f"{self.metric}: an effect is positive, and a margin is too where arms are to be equal")

    @property
    def null_name(self) -> str:
        return self.null or "null-" + "-".join(re.findall(r"[a-z0-9]+", self.metric.lower()))

    @property
    def wanted(self) -> tuple[float, float]:
        ends = {-1: (-math.inf, -self.margin), 0: (-self.margin, self.margin), 1: (self.margin, math.inf)}
        return ends[self.sign]

    @property
    def expects_none(self) -> bool:
        """Whether the claim is that nothing happens: equal arms are then to be confirmed."""
        return self.wanted[0] < 0 < self.wanted[1]

    @property
    def edge(self) -> float:
        """Where a null is undecidable: equal arms, or arms as far apart as a claim of "by more than the margin" allows."""
        return 0.0 if self.expects_none else self.sign * self.margin

    @property
    def planted(self) -> float:
        """What is added to a null: an effect as claimed, or one that breaks a claim of no effect."""
        return self.effect * (self.sign or 1) * (-1 if self.expects_none and self.sign else 1)

    def _label(self) -> str:
        what = f"log of {_of(self.metric, '', self.at)}" if self.ratio else _of(self.metric, "", self.at)
        return f"{what}, {self.arm} minus {self.against}"

    def text(self) -> str:
        return f"{self._label()}, lies {_range(*self.wanted)}, with the 95 % interval over seeds"

    def judge(self, evidence: Evidence) -> Judgement:
        first, second = evidence.find(self.metric, self.arm), evidence.find(self.metric, self.against)
        pairs = zip(first.column(self.at), second.column(self.at), strict=True)
        return _single(self.read([self.minus(a, b) for a, b in pairs], exact=first.exact and second.exact))

    def minus(self, a: float, b: float) -> float:
        if not self.ratio:
            return a - b
        return math.log(a / b) if a > 0 and b > 0 else math.nan

    def read(self, differences: Sequence[float], *, exact: bool = False) -> Reading:
        return reading(self._label(), differences, self.wanted, exact=exact, least=self.grid / math.sqrt(6))


# -- made of others -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Construction(Criterion):
    """True by algebra: the largest residual stays at rounding level, and the named test of ours states it."""

    metric: str
    tolerance: float
    test: str
    arm: str = ""

    def text(self) -> str:
        largest = f"the largest {_of(self.metric, self.arm)} is at most {_g(self.tolerance)}"
        return f"by construction: {largest}, and {self.test} tests it"

    def judge(self, evidence: Evidence) -> Judgement:
        return Equals(self.metric, 0.0, self.tolerance, self.arm).judge(evidence)


@dataclass(frozen=True)
class Misprint(Criterion):
    """The form that circulates must fail and the right one must hold, by the same evidence."""

    printed: Criterion
    right: Criterion

    def text(self) -> str:
        return f"as printed: {self.printed.text()}; as it should be: {self.right.text()}"

    def judge(self, evidence: Evidence) -> Judgement:
        printed, right = self.printed.judge(evidence), self.right.judge(evidence)
        if printed.p_for < 0.05:  # it holds as printed
            return printed
        readings = (*printed.readings, *right.readings)
        return Judgement(readings, max(printed.p_against, right.p_for), right.p_against, misprint=True)

    def leaves(self) -> Iterator[Criterion]:
        yield from self.printed.leaves()
        yield from self.right.leaves()


@dataclass(frozen=True)
class Every(Criterion):
    """All parts hold. It fails as soon as one does (its p is multiplied by their number)."""

    parts: tuple[Criterion, ...]

    def text(self) -> str:
        return "; and ".join(part.text() for part in self.parts)

    def judge(self, evidence: Evidence) -> Judgement:
        found = [part.judge(evidence) for part in self.parts]
        readings = tuple(r for f in found for r in f.readings)
        against = min(1.0, len(found) * min(f.p_against for f in found))
        misprint = any(f.misprint for f in found)
        return Judgement(readings, max(f.p_for for f in found), against, misprint=misprint)

    def leaves(self) -> Iterator[Criterion]:
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Scoped(Criterion):
    """The claim where it is made decides; `beside` tells what the same numbers are elsewhere."""

    main: Criterion
    beside: Mapping[str, Criterion] = field(default_factory=dict)

    def text(self) -> str:
        return self.main.text()

    def judge(self, evidence: Evidence) -> Judgement:
        found = self.main.judge(evidence)
        seen = [
            Reading(f"{where}: {r.label}", r.estimate, r.low, r.high, r.wanted, r.n, r.p_for, r.p_against)
            for where, criterion in self.beside.items()
            for r in criterion.judge(evidence).readings
        ]
        return replace(found, beside=(*found.beside, *seen))

    def leaves(self) -> Iterator[Criterion]:
        yield from self.main.leaves()


@dataclass(frozen=True)
class NotMeasured(Criterion):
    """What would decide it (`would`), and why nobody has (`reason`)."""

    reason: str
    would: str

    def text(self) -> str:
        return self.would

    def judge(self, evidence: Evidence) -> Judgement:
        return Judgement((), 1.0, 1.0)


def arms(names: Sequence[str], part: type[Inside] | type[Equals] | type[Exponent], **options: object) -> Every:
    """The same criterion for each of several arms."""
    return Every(tuple(part(arm=name, **options) for name in names))  # type: ignore[arg-type]


# -- the test -----------------------------------------------------------------------------------------------------------
def reading(
    label: str, values: Sequence[float], wanted: tuple[float, float], *, exact: bool = False, least: float = 0.0
) -> Reading:
    """The mean of the values against a range, by two one-sided t-tests.

    One value decides only where it is exact. A value that is no number decides nothing, nor do equal values that lie on an
    end of the range: two arms without a single spike do not show that one of them has more. `least`: the smallest
    standard deviation that the way of measuring allows.
    """
    n = len(values)
    if any(math.isnan(v) for v in values):
        return Reading(label, math.nan, None, None, wanted, n, 1.0, 1.0)
    equal = min(values) == max(values)
    mean = values[0] if equal else statistics.fmean(values)
    error = 0.0 if equal else math.dist(values, [mean] * n) / math.sqrt(n * (n - 1))  # stdev's fractions take ages
    error = max(error, least / math.sqrt(n))
    inside = wanted[0] <= mean <= wanted[1]
    if n == 1:
        return Reading(label, mean, None, None, wanted, n, *(_certain(inside) if exact else (1.0, 1.0)))
    if error == 0.0:
        settled = exact or mean not in wanted
        return Reading(label, mean, mean, mean, wanted, n, *(_certain(inside) if settled else (1.0, 1.0)))
    reach = t_reach(n) * error
    below = _tail(mean - wanted[0], error, n)  # how likely such a mean is if the truth is at the lower end or below
    above = _tail(wanted[1] - mean, error, n)
    p_for = min(1.0, 2 * max(below, above))
    p_against = min(1.0, 2 * min(1 - below, 1 - above))
    return Reading(label, mean, mean - reach, mean + reach, wanted, n, p_for, p_against)


def _tail(distance: float, error: float, n: int) -> float:
    return 0.0 if math.isinf(distance) else 1 - t_cdf(distance / error, n - 1)


def _certain(inside: bool) -> tuple[float, float]:
    return (0.0, 1.0) if inside else (1.0, 0.0)


def _single(found: Reading) -> Judgement:
    return Judgement((found,), found.p_for, found.p_against)


# -- words --------------------------------------------------------------------------------------------------------------
def _of(metric: str, arm: str, at: float | None = None) -> str:
    return metric + (f" of {arm}" if arm else "") + ("" if at is None else f" at {at:g}")


def _range(low: float, high: float) -> str:
    if math.isinf(low):
        return f"below {_g(high)}"
    return f"above {_g(low)}" if math.isinf(high) else f"between {_g(low)} and {_g(high)}"


def _g(value: float) -> str:
    return f"{value:.4g}"
