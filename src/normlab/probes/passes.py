"""Passes over one stack: the stream, attention weights, depth mixing; and what theory says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normlab.errors import MissingDependencyError, UnsupportedError
from normlab.probes.clock import Clock
from normlab.probes.diagnosis import Mixing
from normlab.probes.inputs import batches as parts
from normlab.probes.inputs.hub import eager_attention
from normlab.probes.inputs.losses import call, logits_of, padding, token_ids, with_ids
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.measure import bounds, metrics
from normlab.probes.measure.bounds import Theory
from normlab.probes.measure.heads import AttentionStatistics
from normlab.probes.measure.outputs import OutputStatistics
from normlab.probes.measure.stream import StreamStatistics
from normlab.probes.measure.summary import LengthRow, mean
from normlab.probes.measure.table import AttentionRow, HeadRow, LayerRow, MaskRow, Rows, column, joined
from normlab.probes.trace.hooks import Layout, Record, slow_path


def read_stream(layout: Layout, batches: list[Any], heard: OutputStatistics | None) -> StreamStatistics:
    """Every batch once; what the model says is heard in the same pass."""
    statistics = StreamStatistics()
    with layout.tracer(statistics), torch.no_grad(), slow_path():
        for batch in batches:
            statistics.text = _text(layout, batch)
            output = call(layout.model, batch)
            if heard is not None and heard.loss.targets is not None and not heard.enough:
                heard.add(logits_of(output), *heard.loss.targets(batch)[1:])
    return statistics


def _text(layout: Layout, batch: Any) -> Tensor | None:
    """Where the sequence that this stack reads holds text, if some of it is padding."""
    if layout.stack == "decoder" and isinstance(batch, Mapping):
        return padding({"attention_mask": batch.get("decoder_attention_mask")})
    return padding(batch)


def read_attention(
    layout: Layout, batches: list[Any], rows: list[LayerRow], options: DiagnoseOptions, say: Clock
) -> tuple[list[LayerRow], tuple[LengthRow, ...], tuple[HeadRow, ...], tuple[MaskRow, ...]]:
    """Weights at the batch's own length into the rows; then the means over layers against length."""
    with eager_attention(layout.model):
        first = parts.first_rows(batches[0], tokens=1 << 30)
        statistics = _watched(layout, first)
        found = statistics.rows()
        if not any(row.entropy is not None for row in found):
            return joined(rows, found), (), (), ()
        # The length of what a decoder reads beside an encoder does not follow from the encoder's text.
        texts = [] if layout.stack == "decoder" else parts.texts(layout.model, batches, options)
        lengths = []
        for number, text in enumerate(texts):
            say("attention", number, len(texts))
            if say.allows(f"attention at {text.shape[1]} tokens"):
                try:
                    known = found if _is_start(text, first) else _watched(layout, with_ids(batches[0], text)).rows()
                except (IndexError, RuntimeError, ValueError) as error:  # a table of positions that ends sooner
                    why = (str(error) or type(error).__name__).splitlines()[0]
                    layout.notes.append(f"attention was not measured at {text.shape[1]} tokens and more: {why}")
                    break
                lengths.append(_at_length(text.shape[1], known))
        modules = [layer for _, layer in layout.layers]
        masks = statistics.mask_rows(modules, getattr(layout.model, "config", None))
        return joined(rows, found), tuple(lengths), statistics.head_rows(), masks


def _is_start(text: Tensor, first: Any) -> bool:
    """Is it the text whose attention is known already?"""
    ids = token_ids(first)
    return ids is not None and padding(first) is None and ids.shape == text.shape and bool((ids == text).all())


class _BehindTheLayers(Exception):
    """Ends a pass behind the last layer: what the head makes of it is not asked."""


def _watched(layout: Layout, batch: Any) -> AttentionStatistics:
    statistics = AttentionStatistics(_text(layout, batch))

    def watch(record: Record) -> None:
        statistics(record)
        if layout.stops_at == record.index:
            raise _BehindTheLayers

    with layout.tracer(watch, weights=True), torch.no_grad(), slow_path(), suppress(_BehindTheLayers):
        call(layout.model, batch)
    return statistics


def _at_length(length: int, rows: Sequence[AttentionRow]) -> LengthRow:
    def average(value: Callable[[AttentionRow], float | None]) -> float:
        return mean(column(rows, value))

    return LengthRow(
        length=length,
        entropy=average(lambda row: row.entropy),
        max_weight=average(lambda row: row.max_weight),
        sink_mass=average(lambda row: row.sink_mass),
        attention_output_rms=average(lambda row: row.attention_output_rms),
        layers=tuple(rows),
    )


def read_mixing(layout: Layout, batch: Any, rows: list[LayerRow]) -> tuple[list[LayerRow], Mixing | None]:
    """The depth-mixing matrix of a model that defines one (`model.depth_mixing_parts(tokens)`), mean over tokens."""
    find, ids, groups = getattr(layout.model, "depth_mixing_parts", None), token_ids(batch), layout.groups
    if find is None or ids is None or groups is None or any(row.nonfinite for row in rows):
        return rows, None
    try:
        found = find(ids)
    except UnsupportedError as error:
        return rows, Mixing(absent=str(error))
    matrix = found.matrix.detach()
    used = metrics.effective_sources(matrix).mean((0, 1)).tolist()
    rows = [
        replace(row, effective_sources=sum(used[site] for site in group) / len(group))
        for row, group in zip(rows, groups, strict=True)
    ]
    shown = tuple(tuple(line) for line in matrix.mean((0, 1)).tolist())
    return rows, Mixing(matrix=shown, tokens=ids.numel(), reads=tuple(group[0] for group in groups), error=found.error)


def theory_of(layout: Layout, stream: StreamStatistics, rows: Rows) -> Theory:
    start, law, placement = stream.embedding, layout.growth_law, layout.placement
    sizes = [[branch.norm for branch in row.branches] for row in rows]
    plain = "scaled" not in placement  # the laws are of sums without weights
    pre = plain and placement.startswith(("pre_norm", "peri_norm", "res_norm"))
    tokens, cosines = max(2, stream.shape[1] if stream.shape else 2), None
    try:
        cosines = bounds.sphere_cosine(placement, start.token_cosine or 0.0, len(rows), tokens=tokens)
    except MissingDependencyError as error:  # scipy, for one line of the page
        layout.notes.append(f"the predicted cosine between tokens was left out: {error}")
    return Theory(
        growth_exponent=bounds.law_exponent(law) if law else bounds.growth_exponent(placement),
        xiong=bounds.xiong_bounds(len(rows), stream.width) if plain and placement.startswith("pre_norm") else None,
        orthogonal=bounds.orthogonal_sum(start.norm or 0.0, sizes) if pre else None,
        sphere_cosine=cosines,
    )
