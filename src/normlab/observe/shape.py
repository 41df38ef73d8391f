"""The shape of a list of sizes over depth: its trend, its period. Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normlab.stats import slope, spearman


def log_slope(sizes: Sequence[float]) -> float:
    """Growth of log(size) over the whole depth, by least squares: 0 flat, log 2 doubled from end to end."""
    if len(sizes) < 2 or min(sizes) <= 0:
        return math.nan
    return slope(list(range(len(sizes))), [math.log(size) for size in sizes]) * (len(sizes) - 1)


def monotone(sizes: Sequence[float]) -> float:
    """Rank correlation of size and depth: 1 where every layer is larger than the one before."""
    return spearman(list(range(len(sizes))), list(sizes))


def periodicity(sizes: Sequence[float], period: int) -> float:
    """Autocorrelation of log(size) at `period`, minus its mean over all shorter lags. A straight line is taken off first.

    1 and more for a pattern that repeats itself, about 0 for noise; nan with fewer than two periods.
    """
    if period < 2 or len(sizes) < 2 * period or min(sizes) <= 0:
        return math.nan
    logs, xs = [math.log(size) for size in sizes], [float(i) for i in range(len(sizes))]
    steep = slope(xs, logs)
    mean_x, mean_y = sum(xs) / len(xs), sum(logs) / len(logs)
    rest = [y - mean_y - steep * (x - mean_x) for x, y in zip(xs, logs, strict=True)]
    power = sum(r * r for r in rest)
    if power < 1e-24:
        return math.nan

    def at(lag: int) -> float:
        pairs = list(zip(rest, rest[lag:], strict=False))
        return sum(a * b for a, b in pairs) / len(pairs) / (power / len(rest))

    return at(period) - sum(at(lag) for lag in range(1, period)) / (period - 1)
