"""A diagnosis in a terminal: verdicts first, sparklines, then a layer table. Never wider than 100 columns."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from normlab.probes.diagnosis import Diagnosis
from normlab.report.terminal import bar, sparkline

WIDTH = 100
MARK = {"bad": "[BAD] ", "warn": "[WARN]", "note": "[NOTE]"}

# Row key, heading, width.
COLUMNS = (
    ("layer", "layer", 5),
    ("norm_median", "|h|", 9),
    ("attention_ratio", "attn/h", 8),
    ("ffn_ratio", "ffn/h", 8),
    ("block_influence", "turn", 8),
    ("token_cosine", "tokens", 9),
    ("entropy", "entropy", 8),
    ("sink_mass", "sink", 7),
    ("gradient_norm", "gradient", 9),
    ("skip_loss_change", "skip", 10),
)
LINES = (
    ("norm_median", "stream norm (median token)", True),
    ("attention_ratio", "attention / stream", True),
    ("ffn_ratio", "FFN / stream", True),
    ("gradient_norm", "gradient norm", True),
    ("token_cosine", "cosine between tokens", False),
    ("entropy", "attention entropy / log n", False),
    ("skip_loss_change", "loss without the layer", False),
    ("homogenisation", "cosine between streams", False),
    ("composite_gain", "gain of the mixings so far", True),
    ("effective_sources", "sources that are read", False),
)


def as_text(diagnosis: Diagnosis) -> str:
    blocks = [_header, _verdicts, _lines, _table, _mixing]
    return "\n\n".join("\n".join(lines) for lines in (block(diagnosis) for block in blocks) if lines)


def _header(d: Diagnosis) -> list[str]:
    how = d.how
    where = "inferred from data" if d.inferred else "known architecture"
    lines = [
        f"{d.name}: {len(d.layers)} x {d.architecture}, {d.placement} ({where}), "
        f"{how['parameters'] / 1e6:.4g}M parameters, d = {how['width']}",
        f"{how['tokens']} tokens in windows of {how['window']}; {identity(d)}",
    ]
    if d.loss:
        chance = f" (chance {d.loss['chance']:.3f})" if d.loss.get("chance") else ""
        lines.append(f"{d.loss['name']} loss {d.loss['value']:.3f}{chance}; {how['seconds']} s on {how['device']}")
    predicted = d.theory.get("growth_exponent")
    beside = f"; random weights predict {predicted:.3g}" if predicted is not None else ""
    lines.append(f"median norm ~ layer^{_short(d.summary.get('growth_exponent'))}{beside}")
    return [piece for line in [*lines, *(f"note: {note}" for note in d.notes)] for piece in textwrap.wrap(line, WIDTH)]


def identity(d: Diagnosis) -> str:
    error = d.identity_error
    if error is None or not error > -math.inf:
        return f"what {d.placement} reads is no sum of contributions, so no identity was checked"
    return f"residual identity holds to {error:.1e}"


def _verdicts(d: Diagnosis) -> list[str]:
    if not d.verdicts:
        return ["No fault was found: every rule is within its limit."]
    lines: list[str] = []
    for verdict in d.verdicts:
        lines += _wrap(f"{MARK[verdict.severity]} {verdict.id}: {verdict.title}", "       ")
        for label, text in (("normal", verdict.normal), ("why", verdict.why), ("try", verdict.advice)):
            lines += _wrap(f"       {label}: {text}", " " * 12)
    return lines


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=True)


def _lines(d: Diagnosis) -> list[str]:
    lines = []
    for key, label, log in LINES:
        values = [_number(row, key) for row in d.layers]
        known = [value for value in values if math.isfinite(value)]
        if known:
            drawn = sparkline(_squeeze(values, 48), log=log)
            lines.append(f"{label:<28}{drawn:<50}{_short(known[0]):>9} .. {_short(known[-1])}")
    return lines


def _squeeze(values: list[float], most: int) -> list[float]:
    """At most so many points: the mean of each run of layers."""
    if len(values) <= most:
        return values
    size = -(-len(values) // most)
    groups = [[v for v in values[i : i + size] if math.isfinite(v)] for i in range(0, len(values), size)]
    return [sum(group) / len(group) if group else math.nan for group in groups]


def _table(d: Diagnosis) -> list[str]:
    shown = [column for column in COLUMNS if any(column[0] in row for row in d.layers)]
    largest = max((v for v in (_number(row, "norm_median") for row in d.layers) if math.isfinite(v)), default=0.0)
    heading = "".join(f"{title:>{width}}" for _, title, width in shown)
    lines = [heading, "-" * len(heading)]
    for row in d.layers:
        cells = "".join(f"{_short(row.get(key)):>{width}}" for key, _, width in shown)
        drawn = bar(_number(row, "norm_median"), largest, width=10)
        lines.append(f"{cells}  {drawn}".rstrip())
    lines.append("turn: 1 - cos before and after; tokens: mean cosine; skip: change of the loss without the layer")
    return lines


_SHADES = " ·░▒▓█"


def _mixing(d: Diagnosis) -> list[str]:
    """|M| in shades: a row is what a layer reads, a column a source (the embedding, then every branch)."""
    matrix = (d.mixing or {}).get("matrix")
    if not matrix:
        return []
    chosen = [*(d.mixing or {})["reads"], len(matrix) - 1]
    shown = _thin(chosen, 24)
    lines = [f"depth mixing |M|, each row by its largest; columns: embedding, then {len(matrix[0]) - 1} branches"]
    for read in shown:
        row = _squeeze([abs(value) for value in matrix[read]], 80)
        label = "head" if read == len(matrix) - 1 else f"layer {chosen.index(read)}"
        shades = "".join(_SHADES[min(5, math.ceil(5 * value / (max(row) or 1.0) - 1e-9))] for value in row)
        lines.append(f"{label:>9} {shades}".rstrip())
    return lines


def _thin(items: list[int], most: int) -> list[int]:
    """At most so many, evenly, the last one always."""
    step = -(-len(items) // most)
    return items[::-1][::step][::-1]


def _number(row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    return math.nan if value is None else float(value)


def _short(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def compare_text(diagnoses: list[Diagnosis]) -> str:
    """Several models side by side: one line each."""
    keys = {
        "growth": "growth",
        "late_contribution": "late",
        "gradient_spread": "gradient",
        "token_cosine": "tokens",
        "entropy": "entropy",
        "sink_mass": "sink",
    }
    heading = f"{'model':<24}{'layers':>7}  {'placement':<12}" + "".join(f"{title:>9}" for title in keys.values())
    lines = [heading, "-" * len(heading)]
    for d in diagnoses:
        cells = "".join(f"{_short(d.summary.get(key)):>9}" for key in keys)
        lines.append(f"{d.name[:23]:<24}{len(d.layers):>7}  {d.placement[:11]:<12}{cells}")
    return "\n".join(lines)
