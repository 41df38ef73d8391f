"""Parameters of one name over depth: which layer is unlike its neighbours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from normlab.probes.judge.outliers import Outlier, outliers
from normlab.probes.judge.verdicts import ModelEvidence

Found = tuple[str, Outlier]
ROUTERS = ("gate.weight", "router.weight", "router.classifier.weight", "wg.weight")


class LayerNamed(Protocol):
    @property
    def layer(self) -> int: ...
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=LayerNamed)


def by_name(rows: Iterable[Item], depth: int, value: Callable[[Item], float | None]) -> dict[str, list[float]]:
    """The value of every parameter over depth; nan where a layer has none of that name."""
    columns: dict[str, list[float]] = defaultdict(lambda: [math.nan] * depth)
    for row in rows:
        if 0 <= row.layer < depth:
            expert = getattr(row, "expert", None)
            name = row.name if expert is None else f"{row.name}[{expert}]"
            columns[name][row.layer] = _nan(value(row))
    return columns


def odd_layers(
    f: ModelEvidence,
    rows: Iterable[Item],
    value: Callable[[Item], float | None],
    *,
    least: float,
    low: bool = True,
    high: bool = True,
) -> list[Found]:
    columns, kinds = by_name(rows, len(f.rows), value), f.kinds
    found = [
        (name, each)
        for name, column in columns.items()
        for each in outliers(column, least=least, low=low, high=high, kinds=kinds)
    ]
    return sorted(found, key=lambda item: -item[1].fold)


def layers_of(found: list[Found]) -> tuple[int, ...]:
    return tuple(sorted({each.layer for _, each in found}))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
