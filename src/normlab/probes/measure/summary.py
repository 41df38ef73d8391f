"""One number per question, from the layer table: what verdicts are judged by and what the reference file holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from normlab.probes.measure import metrics
from normlab.probes.measure.table import AttentionRow, LayerRow, Real, Rows, column
from normlab.stats import gini, power_law, spearman


@dataclass(frozen=True)
class LengthRow:
    """Attention at one length of text, means over layers."""

    length: int
    entropy: Real
    max_weight: Real
    sink_mass: Real
    attention_output_rms: Real
    layers: tuple[AttentionRow, ...] = ()


@dataclass(frozen=True)
class Summary:
    """All summary numbers; nan where something was not measured."""

    growth: Real = math.nan
    growth_exponent: Real = math.nan
    exponential_rate: Real = math.nan
    early_contribution: Real = math.nan
    late_contribution: Real = math.nan
    gradient_spread: Real = math.nan
    gradient_gini: Real = math.nan
    gradient_trend: Real = math.nan
    token_cosine: Real = math.nan
    token_cosine_robust: Real = math.nan
    effective_rank: Real = math.nan
    block_influence: Real = math.nan
    entropy: Real = math.nan
    uniform_share: Real = math.nan
    sink_mass: Real = math.nan
    sink_share: Real = math.nan
    massive_layers: Real = math.nan
    peak_over_median: Real = math.nan
    composite_gain: Real = math.nan
    homogenisation: Real = math.nan
    max_weight_exponent: Real = math.nan
    output_exponent: Real = math.nan


def finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def median(values: Sequence[float]) -> float:
    known = finite(values)
    return statistics.median(known) if known else math.nan


def mean(values: Sequence[float]) -> float:
    known = finite(values)
    return sum(known) / len(known) if known else math.nan


def largest(values: Sequence[float]) -> float:
    return max(finite(values), default=math.nan)


def contribution(row: LayerRow) -> float:
    """The larger of the branches' ||f|| / ||h||."""
    return largest([branch.ratio for branch in row.branches])


def layer_gradients(rows: Rows) -> list[float]:
    """Gradient norms of the layers' parameters; of one shared block those of the stream: its own have no layers."""
    gradients = column(rows, lambda row: row.gradient_norm)
    shared = len(rows) > 1 and len(set(gradients)) == 1
    return column(rows, lambda row: row.stream_gradient) if shared else gradients


def summarise(rows: Rows, lengths: Sequence[LengthRow] = ()) -> Summary:
    depth = len(rows)
    quarter = max(1, depth // 4)
    norms = column(rows, lambda row: row.norm_median)
    shares = [contribution(row) for row in rows]
    gradients = finite(layer_gradients(rows))
    late_half = rows[depth // 2 :]
    entropy = finite(column(rows, lambda row: row.entropy))
    sinks = finite(column(rows, lambda row: row.sink_mass))
    peaks, usual = column(rows, lambda row: row.max_magnitude), column(rows, lambda row: row.median_magnitude)
    weight, output = exponents(lengths)
    return Summary(
        growth=norms[-1] / norms[0] if norms and norms[0] > 0 else math.nan,
        growth_exponent=metrics.growth_exponent(norms),
        exponential_rate=metrics.exponential_rate(norms),
        early_contribution=median(shares[:quarter]),
        late_contribution=median(shares[-quarter:]),
        gradient_spread=max(gradients) / min(gradients) if gradients and min(gradients) > 0 else math.nan,
        gradient_gini=gini(gradients),
        gradient_trend=spearman(list(range(len(gradients))), gradients),
        token_cosine=largest(column(late_half, lambda row: row.token_cosine)),
        token_cosine_robust=largest(column(late_half, lambda row: row.token_cosine_robust)),
        effective_rank=column(rows[-1:], lambda row: row.effective_rank)[0] if rows else math.nan,
        block_influence=median(column(rows, lambda row: row.block_influence)),
        entropy=mean(entropy),
        uniform_share=sum(value > 0.95 for value in entropy) / len(entropy) if entropy else math.nan,
        sink_mass=mean(sinks),
        sink_share=sum(value > 0.3 for value in sinks) / len(sinks) if sinks else math.nan,
        massive_layers=float(sum(value > 0 for value in column(rows, lambda row: row.massive))),
        peak_over_median=largest([peak / size for peak, size in zip(peaks, usual, strict=True) if size > 0]),
        composite_gain=largest(column(rows, lambda row: row.composite_gain)),
        homogenisation=median(column(late_half, lambda row: row.homogenisation)),
        max_weight_exponent=weight,
        output_exponent=output,
    )


def exponents(lengths: Sequence[LengthRow]) -> tuple[float, float]:
    """p of y ~ n^p over the lengths, of the largest weight (-1 if attention only averages) and the output (-1/2)."""
    sizes = [row.length for row in lengths]
    if len(sizes) < 2:
        return math.nan, math.nan
    weights, outputs = [row.max_weight for row in lengths], [row.attention_output_rms for row in lengths]
    return power_law(sizes, weights), power_law(sizes, outputs)
