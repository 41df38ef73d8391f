"""Each scheme against the first one, seed by seed: better, worse or undecided at every length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from normlab.experiments.lengthgen import SETTING

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


def against_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each setting, other scheme, weights and length; the metric is `tv`, or `loss` where no law is known.

    Seeds are paired: both runs of a pair see the same training batches.
    """
    if not rows:
        return []
    metric = "tv" if any(row.get("tv") is not None for row in rows) else "loss"
    first = rows[0]["scheme"]
    shared = [key for key in (*SETTING, "weights", "length") if key != "scheme"]
    values: dict[tuple[Any, ...], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row.get(metric) is not None:
            group = values.setdefault(tuple(row.get(key) for key in shared), {})
            group.setdefault(row["scheme"], {})[row["seed"]] = row[metric]
    found = []
    for key, schemes in values.items():
        base = schemes.get(first, {})
        for scheme, mine in schemes.items():
            pairs = [mine[seed] - base[seed] for seed in mine if seed in base]
            if scheme == first or not pairs:
                continue
            low, high, coverage = median_interval(pairs)
            sure = coverage >= COVERAGE
            verdict = "better" if sure and high < 0 else "worse" if sure and low > 0 else "undecided"
            found.append(
                {
                    **dict(zip(shared, key, strict=True)),
                    "scheme": scheme,
                    "against": first,
                    "metric": metric,
                    "difference": statistics.median(pairs),
                    "low": low,
                    "high": high,
                    "coverage": coverage,
                    "seeds": len(pairs),
                    "verdict": verdict,
                }
            )
    return found
