"""Paired tests over seeds, exactly: Student's t has a closed form for whole degrees of freedom."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for Student's t with `freedom` >= 1 (Abramowitz and Stegun 26.7.3-4)."""
    theta = math.atan2(t, math.sqrt(freedom))
    cos, sin = math.cos(theta), math.sin(theta)
    term, total = (cos, 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(freedom // 2):
        total += term
        term *= cos**2 * ((2 * k + 2) / (2 * k + 3) if freedom % 2 else (2 * k + 1) / (2 * k + 2))
    area = (2 / math.pi) * (theta + sin * total) if freedom % 2 else sin * total
    return 0.5 + area / 2


def t_quantile(p: float, freedom: int) -> float:
    """The t with P(T <= t) = p, by bisection."""
    low, high = -1e8, 1e8
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Paired:
    """Mean difference over seeds with its 95 % interval and two-sided p; `adjusted` is p after Holm's correction."""

    derived: ClassVar[tuple[str, ...]] = ("significant",)

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
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "significant": self.significant}


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
    reach = t_quantile(0.975, n - 1) * error
    p = 2 * (1 - t_cdf(abs(mean) / error, n - 1))
    return Paired(n, mean, mean - reach, mean + reach, p)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    reach = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - reach, mean + reach


def holm(tests: dict[str, Paired]) -> dict[str, Paired]:
    """The same tests with p adjusted for their number (Holm 1979): the chance of any false alarm stays below 5 %."""
    known = sorted((name for name, test in tests.items() if test.p is not None), key=lambda name: tests[name].p or 0.0)
    result, worst = dict(tests), 0.0
    for rank, name in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * (tests[name].p or 0.0)))
        result[name] = Paired(**{**asdict(tests[name]), "adjusted": worst})
    return result


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
