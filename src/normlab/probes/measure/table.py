"""The table of a diagnosis: one frozen row per layer, and how rows become JSON and come back.

A field that is None was not measured and is left out of JSON; one that is NaN was measured and is no number, and
becomes null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator


def _nan(value: Any) -> Any:
    return math.nan if value is None else value


Real = Annotated[float, BeforeValidator(_nan)]  # null is read as NaN
Number = Annotated[float | None, BeforeValidator(_nan)]  # the same, and None where the key is absent


class Sparse:
    """Fields that are None are left out of JSON."""


@dataclass(frozen=True)
class StreamRow(Sparse):
    """The residual stream at one place of the depth; numbers are means over tokens and batches."""

    norm: Number = None
    norm_median: Number = None
    nonfinite: Number = None
    token_cosine: Number = None
    token_variance: Number = None
    median_magnitude: Number = None
    massive: Number = None
    effective_rank: Number = None
    token_cosine_robust: Number = None  # without the three largest coordinates
    rms: Number = None
    max_magnitude: Number = None
    max_position: int | None = None
    max_coordinate: int | None = None


@dataclass(frozen=True)
class AttentionRow(Sparse):
    """What the attention weights of one layer do."""

    layer: int
    attention_output_rms: Number = None
    entropy: Number = None
    max_weight: Number = None
    sink_mass: Number = None
    sink_position: int | None = None
    sink_heads: Number = None
    unmeasured: str | None = None  # why there are no weights


@dataclass(frozen=True)
class HeadRow(Sparse):
    """One head of one layer; `output` is the size of what it adds to the stream, where its projection was found."""

    layer: int
    head: int
    entropy: Real
    max_weight: Real
    sink_mass: Real
    output: Number = None
    twin: int | None = None  # another head of the layer that adds the same
    twin_cosine: Number = None


@dataclass(frozen=True)
class MaskRow(Sparse):
    """How far a layer looks, from the weights that are not exactly zero; `window` is what the configuration says.

    `back` and `ahead` are distances in tokens, `length` is that of the text.
    """

    layer: int
    length: int
    back: int
    ahead: int
    window: int | None = None


@dataclass(frozen=True)
class GradientRow(Sparse):
    """Gradients of the loss: of a layer's parameters, of its branches' and of the stream that enters it."""

    layer: int
    gradient_norm: Number = None
    gradient_rms: Number = None
    attention_gradient: Number = None
    ffn_gradient: Number = None
    stream_gradient: Number = None


@dataclass(frozen=True)
class BranchReading:
    """One branch of one layer: the size of what it adds, beside the stream, and its angle to it."""

    kind: str  # "attention", "ffn", "cross_attention", "mixer", or one of these with a number where a layer has several
    layer: int
    norm: Real
    ratio: Real
    cosine: Real
    typical: Real  # the ratio of the median token: one huge or zero token does not move it


@dataclass(frozen=True)
class LayerRow(Sparse):
    """Everything that was measured of one layer call. The order is that of the columns."""

    layer: int
    attention_norm: Number = None
    attention_ratio: Number = None
    attention_cosine: Number = None
    ffn_norm: Number = None
    ffn_ratio: Number = None
    ffn_cosine: Number = None
    block_influence: Number = None
    norm: Number = None
    norm_median: Number = None
    nonfinite: Number = None
    token_cosine: Number = None
    token_variance: Number = None
    median_magnitude: Number = None
    massive: Number = None
    effective_rank: Number = None
    token_cosine_robust: Number = None
    homogenisation: Number = None
    mixing_gain: Number = None
    composite_gain: Number = None
    effective_streams: Number = None
    smallest_stream: Number = None  # beside the mean of all
    mixing_error: Number = None  # of its rows and columns from 1
    mixing_keeps: Number = None  # second singular value
    write_gate: Number = None  # mean weight of the weaker branch's write
    stuck_gates: Number = None  # largest share of gates of one branch at their bounds
    head_share: Number = None  # largest weight of the head's read, in the last layer
    rms: Number = None
    max_magnitude: Number = None
    max_position: int | None = None
    max_coordinate: int | None = None
    angular_distance: Number = None
    effective_sources: Number = None
    attention_output_rms: Number = None
    entropy: Number = None
    max_weight: Number = None
    sink_mass: Number = None
    sink_position: int | None = None
    sink_heads: Number = None
    gradient_norm: Number = None
    gradient_rms: Number = None
    attention_gradient: Number = None
    ffn_gradient: Number = None
    stream_gradient: Number = None
    skip_loss_change: Number = None
    attention_typical: Number = None
    ffn_typical: Number = None
    mixer: str | None = None  # what mixes tokens where it is no softmax attention, such as "state space (MambaMixer)"
    unmeasured: str | None = None  # why there are no attention weights of this layer
    others: tuple[BranchReading, ...] | None = None  # branches besides attention and ffn: cross_attention, mixer, ...

    @property
    def branches(self) -> tuple[BranchReading, ...]:
        """The branches that this layer has, attention and FFN first."""
        found = (
            ("attention", self.attention_norm, self.attention_ratio, self.attention_cosine, self.attention_typical),
            ("ffn", self.ffn_norm, self.ffn_ratio, self.ffn_cosine, self.ffn_typical),
        )
        return tuple(
            BranchReading(
                kind, self.layer, norm, _nan(ratio), _nan(cosine), _nan(ratio if typical is None else typical)
            )
            for kind, norm, ratio, cosine, typical in found
            if norm is not None
        ) + (self.others or ())

    def branch(self, kind: str) -> BranchReading | None:
        return next((branch for branch in self.branches if branch.kind == kind), None)


Rows = Sequence[LayerRow]
Item = TypeVar("Item")


def column(rows: Iterable[Item], value: Callable[[Item], float | None]) -> list[float]:
    """The values of a column; nan where a layer has none."""
    return [float(_nan(value(row))) for row in rows]


def ratios(rows: Rows, kind: str) -> list[float]:
    """||f|| / ||h|| of the median token, of one kind of branch in every layer; nan where a layer has none."""
    return column(rows, lambda row: branch.typical if (branch := row.branch(kind)) else None)


def kinds(rows: Rows) -> list[str]:
    """The kinds of branches that some layer has, attention and FFN first."""
    return list(dict.fromkeys(["attention", "ffn", *(branch.kind for row in rows for branch in row.branches)]))


def flat(row: LayerRow) -> dict[str, Any]:
    """One line of a table: further branches become columns of their own."""
    values: dict[str, Any] = plain(replace(row, others=None))
    for branch in row.others or ():
        sizes = {"norm": branch.norm, "ratio": branch.ratio, "cosine": branch.cosine}
        values |= {f"{branch.kind}_{name}": plain(size) for name, size in sizes.items()}
    return values


def joined(rows: Iterable[LayerRow], more: Iterable[AttentionRow | GradientRow]) -> list[LayerRow]:
    """The rows with what another stage measured of the same layers."""
    known = {row.layer: _measured(row) for row in more}
    return [replace(row, **known.get(row.layer, {})) for row in rows]


def _measured(row: AttentionRow | GradientRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: value for name, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """A result as JSON can hold it: dataclasses become dicts, tuples lists, NaN and infinities None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
        sparse = isinstance(value, Sparse)
        return {name: plain(item) for name, item in items if not (sparse and item is None)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
