"""Is one layer unlike its neighbours? A robust reading for any positive quantity that every layer has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TINY = 1e-12
REACH = 2  # neighbours on each side
SPREADS = 4.0  # times the usual difference between a layer and its neighbours
ENDS = 3.0  # the first and the last layer differ from the others in healthy models: thrice the logarithm is asked


@dataclass(frozen=True)
class Outlier:
    """`times` is value / usual, where usual is the median of the neighbours."""

    layer: int
    value: float
    usual: float

    @property
    def times(self) -> float:
        return self.value / max(self.usual, TINY)

    @property
    def fold(self) -> float:
        """How far, whichever the direction."""
        return max(self.times, 1 / max(self.times, TINY))


def outliers(
    values: Sequence[float],
    *,
    least: float,
    low: bool = True,
    high: bool = True,
    kinds: Sequence[frozenset[int]] = (),
) -> list[Outlier]:
    """Layers that are unlike those of their kind: an attention over all tokens is unlike one over a window."""
    found: list[Outlier] = []
    for kind in kinds or [frozenset(range(len(values)))]:
        mine = [value if i in kind else math.nan for i, value in enumerate(values)]
        found += _outliers(mine, least=least, low=low, high=high)
    return sorted(found, key=lambda each: each.layer)


def _outliers(values: Sequence[float], *, least: float, low: bool, high: bool) -> list[Outlier]:
    """Layers that differ `least`-fold from the median of their neighbours, and much more than layers here usually do.

    An outlier lies on the same side of every neighbour, so that a trend or a step over depth makes none.
    """
    logs = [(i, math.log(max(value, TINY))) for i, value in enumerate(values) if math.isfinite(value) and value >= 0]
    if len(logs) < 4:
        return []
    slope = _slope(logs)
    known = [(i, x - slope * i) for i, x in logs]
    apart = {i: x - _usual(known, place) for place, (i, x) in enumerate(known)}
    found = []
    for place, (i, x) in enumerate(known):
        rest = statistics.median(abs(apart[j]) for j in apart if j != i)
        end = place in (0, len(known) - 1)
        wanted = max(math.log(least) * (ENDS if end else 1.0), SPREADS * rest)
        sides = [known[p][1] for p in (place - 1, place + 1) if 0 <= p < len(known)]
        above = all(x > side for side in sides) and apart[i] > wanted
        below = all(x < side for side in sides) and apart[i] < -wanted
        if (above and high) or (below and low):
            found.append(Outlier(i, values[i], math.exp(x - apart[i] + slope * i)))
    return found if len(found) <= len(known) // 3 else []


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """The median slope between layers (Theil and Sen): a trend over depth that one layer cannot move."""
    return statistics.median((y - x) / (j - i) for n, (i, x) in enumerate(points) for j, y in points[n + 1 :])


def _usual(known: Sequence[tuple[int, float]], place: int) -> float:
    low = max(0, min(place - REACH, len(known) - 1 - 2 * REACH))
    near = [known[p][1] for p in range(low, min(len(known), low + 2 * REACH + 1)) if p != place]
    return statistics.median(near)
