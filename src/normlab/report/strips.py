"""Small pictures that are markup of our own: an interval on its axis, and counts beside each other.

A page with a hundred of them needs no script, their texts wrap on a phone, and they print.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from normlab.report.terminal import show

Kind = TypeVar("Kind", bound=str)

APART = 0.14  # of the axis: ticks that are nearer would touch on a phone


@dataclass(frozen=True)
class Interval:
    """A measurement with its interval, and the range that was claimed; infinite ends are open."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    claimed: tuple[float, float]


def interval(given: Interval, *, colour: str) -> str:
    """The claimed range is shaded, the dot is the measurement, the bar its interval."""
    left, right = _span(given)

    def place(value: float) -> float:
        return 100 * min(1.0, max(0.0, (value - left) / (right - left)))

    parts = []
    low, high = max(given.claimed[0], left), min(given.claimed[1], right)
    if low <= high:
        parts.append(f'<i class="claimed" style="left:{place(low):.2f}%;width:{place(high) - place(low):.2f}%"></i>')
    if given.low is not None and given.high is not None:
        width = place(given.high) - place(given.low)
        parts.append(f'<i class="reach" style="left:{place(given.low):.2f}%;width:{width:.2f}%;color:{colour}"></i>')
    if given.value is not None:
        parts.append(f'<i class="mean" style="left:{place(given.value):.2f}%;color:{colour}"></i>')
    ticks = "".join(f'<span style="left:{place(tick):.2f}%">{show(tick)}</span>' for tick in _ticks(given, left, right))
    label = html.escape(given.label)
    return (
        f'<div class="strip"><p>{label}</p><div class="track" role="img" aria-label="{label}">{"".join(parts)}</div>'
        f'<div class="ticks" aria-hidden="true">{ticks}</div></div>'
    )


def counts(rows: Mapping[str, Mapping[Kind, int]], colours: Mapping[Kind, str]) -> str:
    """A bar a row, split by kind, each part as wide as its number; the legend stands above."""
    kinds = [kind for kind in colours if any(row.get(kind) for row in rows.values())]
    legend = "".join(
        f'<li><i style="background:{colours[kind]}"></i>{html.escape(kind)}</li>' for kind in kinds
    )  # fmt: skip
    most = max(sum(row.values()) for row in rows.values())
    drawn = []
    for name, row in rows.items():
        said = ", ".join(f"{row[kind]} {kind}" for kind in kinds if row.get(kind))
        bars = "".join(
            f'<i style="width:{100 * row[kind] / most:.2f}%;background:{colours[kind]}">{row[kind]}</i>'
            for kind in kinds if row.get(kind)
        )  # fmt: skip
        label = html.escape(f"{name}: {said}")
        drawn.append(f'<p>{html.escape(name)}</p><div class="bars" role="img" aria-label="{label}">{bars}</div>')
    return f'<div class="counts"><ul>{legend}</ul>{"".join(drawn)}</div>'


def _span(given: Interval) -> tuple[float, float]:
    """An axis that holds the measurement, its interval and the ends of the range, with some air."""
    known = _finite([given.value, given.low, given.high, *given.claimed])
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    air = 0.25 * (high - low) or 0.5 * abs(high) or 1.0
    return low - air, high + air


def _ticks(given: Interval, left: float, right: float) -> list[float]:
    """The ends of the claimed range, zero, the measurement: as many as have room, in this order."""
    found: list[float] = []
    for tick in _finite([*given.claimed, 0.0, given.value]):
        if left <= tick <= right and all(abs(tick - other) > APART * (right - left) for other in found):
            found.append(tick + 0.0)  # no -0
    return found


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
