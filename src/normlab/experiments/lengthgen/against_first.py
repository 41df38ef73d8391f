"""Each scheme against the first one, seed by seed: better, worse or undecided at every length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from normlab.experiments.lengthgen.result import AgainstFirst, Arm, ScoreRow

COVERAGE = 0.93
"""Of the interval of the median difference; five seeds give 0.9375, four 0.875."""


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The shortest pair of order statistics that holds the population's median with probability COVERAGE or more.

    It assumes nothing about the distribution (sign test). Where even the whole range does not reach COVERAGE, the range
    is returned with the probability that it does reach.
    """
    ordered, n = sorted(values), len(values)
    reached = [1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(1, n // 2 + 1)]
    if not reached:
        return ordered[0], ordered[-1], 0.0
    depth = max((k for k, p in enumerate(reached) if p >= COVERAGE), default=0)
    return ordered[depth], ordered[n - 1 - depth], reached[depth]


def against_first(rows: Sequence[ScoreRow]) -> list[AgainstFirst]:
    """One line for each arm, weights and length; the metric is `tv`, or `loss` where no law is known.

    Seeds are paired: both runs of a pair see the same training batches.
    """
    if not rows:
        return []
    metric = "tv" if any(row.metric("tv") is not None for row in rows) else "loss"
    first = rows[0].arm.scheme
    values: dict[tuple[Arm, str, int], dict[Arm, dict[int, float]]] = {}
    for row in rows:
        value = row.metric(metric)
        if value is not None:
            shared = (replace(row.arm, scheme=first), row.weights, row.length)
            values.setdefault(shared, {}).setdefault(row.arm, {})[row.seed] = value
    return [
        _line(arm, pairs, first=first, metric=metric, weights=weights, length=length)
        for (base, weights, length), arms in values.items()
        for arm, mine in arms.items()
        if arm != base and (pairs := [mine[s] - arms[base][s] for s in mine if s in arms.get(base, {})])
    ]


def _line(arm: Arm, pairs: Sequence[float], *, first: str, metric: str, weights: str, length: int) -> AgainstFirst:
    low, high, coverage = median_interval(pairs)
    sure = coverage >= COVERAGE
    return AgainstFirst(
        arm, weights, length, against=first, metric=metric, difference=statistics.median(pairs), low=low, high=high,
        coverage=coverage, seeds=len(pairs),
        verdict="better" if sure and high < 0 else "worse" if sure and low > 0 else "undecided",
    )  # fmt: skip
