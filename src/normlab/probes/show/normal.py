"""What healthy trained models measure at the same depth: the band behind a line. The model itself is never among them.

`data/normal.json` is written by `tools/diagnose_normal.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from normlab.probes.measure.table import Real

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

COLUMNS = ("attention_typical", "ffn_typical", "entropy", "token_cosine_robust")
STEPS = 10  # places over the depth, from the first layer (0) to the last (10)
FEWEST = 4  # models that make a band


@dataclass(frozen=True)
class Healthy:
    """One model: each column at `STEPS` + 1 places of its depth."""

    group: str  # "post": norms behind the addition, "pre": the others
    columns: dict[str, tuple[Real, ...]]


@dataclass(frozen=True)
class Gallery:
    made: str
    models: dict[str, Healthy]


@dataclass(frozen=True)
class Band:
    layers: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    models: int


@cache
def gallery() -> Gallery:
    path = Path(__file__).parent / "data" / "normal.json"
    return TypeAdapter(Gallery).validate_json(path.read_bytes()) if path.is_file() else Gallery("", {})


def group_of(placement: str) -> str:
    return "post" if placement.startswith("post_norm") else "pre"


def at_steps(values: list[float]) -> tuple[float, ...]:
    """A column at evenly spaced places of the depth, by linear interpolation."""
    last = len(values) - 1
    places = [step / STEPS * last for step in range(STEPS + 1)]
    return tuple(
        values[math.floor(p)] + (p - math.floor(p)) * (values[min(last, math.floor(p) + 1)] - values[math.floor(p)])
        for p in places
    )


def band_of(column: str, d: Diagnosis) -> Band | None:
    """Smallest to largest of the healthy models of this kind, at each layer of `d`."""
    depth = len(d.layers)
    rows = [
        model.columns[column]
        for name, model in gallery().models.items()
        if name != d.name and model.group == group_of(d.placement) and column in model.columns
    ]
    if len(rows) < FEWEST or depth < 2:
        return None
    low, high = [], []
    for layer in range(depth):
        place = layer / (depth - 1) * STEPS
        left = min(STEPS - 1, math.floor(place))
        here = [row[left] + (place - left) * (row[left + 1] - row[left]) for row in rows]
        known = [value for value in here if math.isfinite(value)]
        if len(known) < FEWEST:
            return None
        low.append(min(known))
        high.append(max(known))
    return Band(tuple(range(depth)), tuple(low), tuple(high), len(rows))
