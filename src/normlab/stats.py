"""Numbers about lists of numbers: intervals, paired tests, Holm, ranks, fits. A leaf: the standard library only.

Student's t is exact: it has a closed form for whole degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar


# -- Student's t ------------------------------------------------------------------------------------------------------
def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for Student's t with `freedom` >= 1 (Abramowitz and Stegun 26.7.3-4)."""
    if freedom < 1:
        raise ValueError(f"Student's t needs one degree of freedom or more, but got {freedom}")
    theta = math.atan2(t, math.sqrt(freedom))
    cos, sin = math.cos(theta), math.sin(theta)
    term, total = (cos, 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(freedom // 2):
        total += term
        term *= cos**2 * ((2 * k + 2) / (2 * k + 3) if freedom % 2 else (2 * k + 1) / (2 * k + 2))
    area = (2 / math.pi) * (theta + sin * total) if freedom % 2 else sin * total
    return 0.5 + area / 2


@lru_cache(maxsize=256)
def t_quantile(p: float, freedom: int) -> float:
    """The t with P(T <= t) = p, by bisection."""
    low, high = -1e8, 1e8
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def t_reach(n: int) -> float:
    """By how many standard errors the 95 % interval of a mean over n >= 2 values reaches to each side.

    An error from four numbers is itself uncertain: 3.18 for them, 12.7 for two, 1.96 for very many.
    """
    return t_quantile(0.975, n - 1)


# -- means over seeds -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Paired:
    """Mean difference over seeds with its 95 % interval and two-sided p; `adjusted` is p after Holm's correction."""

    derived: ClassVar[tuple[str, ...]] = ("significant",)  # written to files too, see `results`

    n: int
    mean: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None

    @property
    def significant(self) -> bool:
        p = self.p if self.adjusted is None else self.adjusted
        return p is not None and p < 0.05

    @property
    def lower(self) -> bool:
        """Established to lie below zero."""
        return self.significant and self.mean is not None and self.mean < 0

    @property
    def higher(self) -> bool:
        return self.significant and self.mean is not None and self.mean > 0

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def paired(differences: Sequence[float]) -> Paired:
    """The paired t-test of "the mean difference is zero". One pair gives a mean and no test."""
    n = len(differences)
    if n == 0:
        return Paired(0, None)
    mean = statistics.fmean(differences)
    if n == 1:
        return Paired(1, mean)
    error = statistics.stdev(differences) / math.sqrt(n)
    if error == 0:
        return Paired(n, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    reach = t_reach(n) * error
    p = 2 * (1 - t_cdf(abs(mean) / error, n - 1))
    return Paired(n, mean, mean - reach, mean + reach, p)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; nan with fewer than two values, and where one of them is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    reach = t_reach(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - reach, mean + reach


def holm(tests: Mapping[str, Paired]) -> dict[str, Paired]:
    """The same tests with p adjusted for their number (Holm 1979): the chance of any false alarm stays below 5 %."""
    known = sorted((name for name, test in tests.items() if test.p is not None), key=lambda name: tests[name].p or 0.0)
    result, worst = dict(tests), 0.0
    for rank, name in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * (tests[name].p or 0.0)))
        result[name] = replace(tests[name], adjusted=worst)
    return result


# -- fits ---------------------------------------------------------------------------------------------------------------
def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least-squares slope of the finite points; nan with fewer than two."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(points) < 2:
        return math.nan
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread > 0 else math.nan


def power_law(xs: Sequence[float], ys: Sequence[float]) -> float:
    """p of the least-squares fit log y = p log x + c; points that are not positive are left out."""
    pairs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if x > 0 and y > 0]
    return slope([x for x, _ in pairs], [y for _, y in pairs])


def log_parabola(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """(lr, curvature) of the parabola through three (lr, loss) points in log2(lr); None where it does not open upward.

    The curvature is how much loss is lost when the rate is off by a factor of two.
    """
    (x0, y0), (x1, y1), (x2, y2) = ((math.log2(lr), loss) for lr, loss in points)
    slope0, slope1 = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    curvature = (slope1 - slope0) / (x2 - x0)
    if curvature <= 0:
        return None
    lowest = (x0 + x1) / 2 - slope0 / (2 * curvature)
    return 2.0 ** min(max(lowest, x0), x2), curvature


# -- ranks and shares --------------------------------------------------------------------------------------------------
def ranks(values: Sequence[float]) -> list[float]:
    """1-based ranks; ties share their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    result = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop + 1 < len(order) and values[order[stop + 1]] == values[order[start]]:
            stop += 1
        for i in order[start : stop + 1]:
            result[i] = (start + stop) / 2 + 1
        start = stop + 1
    return result


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Rank correlation over the pairs where both are finite; nan when one side is constant or pairs are < 3."""
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(pairs) < 3:
        return math.nan
    a, b = ranks([x for x, _ in pairs]), ranks([y for _, y in pairs])
    mean = (len(pairs) + 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    below = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return top / math.sqrt(below) if below > 0 else math.nan


def gini(values: Sequence[float]) -> float:
    """0 when all are equal, (n - 1) / n when one value holds everything. Values must not be negative."""
    ordered, total = sorted(values), sum(values)
    if not ordered or not total > 0:
        return math.nan
    n = len(ordered)
    return sum((2 * i - n - 1) * value for i, value in enumerate(ordered, 1)) / (n * total)
