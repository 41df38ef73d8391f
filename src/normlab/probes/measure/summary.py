"""One number per question, from the layer table: what verdicts are judged by and what the reference file holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from normlab.probes.measure import metrics

Rows = Sequence[dict[str, Any]]


def column(rows: Rows, name: str) -> list[float]:
    """The values of a column; nan where a layer has none."""
    return [float(row[name]) if row.get(name) is not None else math.nan for row in rows]


def finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def median(values: Sequence[float]) -> float:
    known = finite(values)
    return statistics.median(known) if known else math.nan


def mean(values: Sequence[float]) -> float:
    known = finite(values)
    return sum(known) / len(known) if known else math.nan


def contribution(row: dict[str, Any]) -> float:
    """The larger of the two branches' ||f|| / ||h||."""
    return max(finite([row.get("attention_ratio", math.nan), row.get("ffn_ratio", math.nan)]), default=math.nan)


def summarise(rows: Rows, lengths: Rows = ()) -> dict[str, float]:
    """All summary numbers; nan where something was not measured."""
    depth = len(rows)
    quarter = max(1, depth // 4)
    norms = column(rows, "norm_median")
    shares = [contribution(row) for row in rows]
    gradients = finite(column(rows, "gradient_norm"))
    if len(set(gradients)) == 1 and depth > 1:  # one shared block: its gradient has no layers, the stream's has
        gradients = finite(column(rows, "stream_gradient"))
    late_half = rows[depth // 2 :]
    entropy, sinks = finite(column(rows, "entropy")), finite(column(rows, "sink_mass"))
    magnitudes = [
        m / s for m, s in zip(column(rows, "max_magnitude"), column(rows, "median_magnitude"), strict=True) if s > 0
    ]
    result = {
        "growth": norms[-1] / norms[0] if norms and norms[0] > 0 else math.nan,
        "growth_exponent": metrics.growth_exponent(norms),
        "exponential_rate": metrics.exponential_rate(norms),
        "early_contribution": median(shares[:quarter]),
        "late_contribution": median(shares[-quarter:]),
        "gradient_spread": max(gradients) / min(gradients) if gradients and min(gradients) > 0 else math.nan,
        "gradient_gini": metrics.gini(gradients),
        "gradient_trend": metrics.spearman(list(range(len(gradients))), gradients),
        "token_cosine": max(finite(column(late_half, "token_cosine")), default=math.nan),
        "token_cosine_robust": max(finite(column(late_half, "token_cosine_robust")), default=math.nan),
        "effective_rank": float(rows[-1].get("effective_rank", math.nan)) if rows else math.nan,
        "block_influence": median(column(rows, "block_influence")),
        "entropy": mean(entropy),
        "uniform_share": sum(value > 0.95 for value in entropy) / len(entropy) if entropy else math.nan,
        "sink_mass": mean(sinks),
        "sink_share": sum(value > 0.3 for value in sinks) / len(sinks) if sinks else math.nan,
        "massive_layers": float(sum(value > 0 for value in column(rows, "massive"))),
        "peak_over_median": max(finite(magnitudes), default=math.nan),
        "composite_gain": max(finite(column(rows, "composite_gain")), default=math.nan),
        "homogenisation": median(column(late_half, "homogenisation")),
    }
    return {**result, **exponents(lengths)}


def exponents(lengths: Rows) -> dict[str, float]:
    """p of y ~ n^p over the lengths: -1 for the largest weight and -1/2 for the output if attention only averages."""
    sizes = [row["length"] for row in lengths]
    if len(sizes) < 2:
        return {"max_weight_exponent": math.nan, "output_exponent": math.nan}
    return {
        "max_weight_exponent": metrics.power_law(sizes, column(lengths, "max_weight")),
        "output_exponent": metrics.power_law(sizes, column(lengths, "attention_output_rms")),
    }
