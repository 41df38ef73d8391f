"""Numbers about lists of numbers: fits, inequality, rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
