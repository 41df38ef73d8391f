"""A diagnosis in a terminal: verdicts first, sparklines, then a layer table. Never wider than 100 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from normlab.probes.measure.summary import Summary
from normlab.probes.measure.table import LayerRow, column
from normlab.report.terminal import bar, sparkline

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

WIDTH = 100
MARK = {"bad": "[BAD] ", "warn": "[WARN]", "note": "[NOTE]"}

Value = Callable[[LayerRow], float | None]

# Value, heading, width.
COLUMNS: tuple[tuple[Value, str, int], ...] = (
    (lambda row: row.layer, "layer", 5),
    (lambda row: row.norm_median, "|h|", 9),
    (lambda row: row.attention_ratio, "attn/h", 8),
    (lambda row: row.ffn_ratio, "ffn/h", 8),
    (lambda row: row.block_influence, "turn", 8),
    (lambda row: row.token_cosine, "tokens", 9),
    (lambda row: row.entropy, "entropy", 8),
    (lambda row: row.sink_mass, "sink", 7),
    (lambda row: row.gradient_norm, "gradient", 9),
    (lambda row: row.skip_loss_change, "skip", 10),
)
# Value, label, logarithmic.
LINES: tuple[tuple[Value, str, bool], ...] = (
    (lambda row: row.norm_median, "stream norm (median token)", True),
    (lambda row: row.attention_ratio, "attention / stream", True),
    (lambda row: row.ffn_ratio, "FFN / stream", True),
    (lambda row: row.gradient_norm, "gradient norm", True),
    (lambda row: row.token_cosine, "cosine between tokens", False),
    (lambda row: row.entropy, "attention entropy / log n", False),
    (lambda row: row.skip_loss_change, "loss without the layer", False),
    (lambda row: row.homogenisation, "cosine between streams", False),
    (lambda row: row.composite_gain, "gain of the mixings so far", True),
    (lambda row: row.effective_sources, "sources that are read", False),
)


def as_text(diagnosis: Diagnosis) -> str:
    blocks = [_header, _verdicts, _lines, _table, _mixing]
    return "\n\n".join("\n".join(lines) for lines in (block(diagnosis) for block in blocks) if lines)


def _header(d: Diagnosis) -> list[str]:
    how = d.how
    where = "inferred from data" if d.inferred else "known architecture"
    lines = [
        d.headline,
        f"{d.name}: {len(d.layers)} x {d.architecture}, {d.placement} ({where}), "
        f"{how.parameters / 1e6:.4g}M parameters, d = {how.width}",
        f"{how.tokens} tokens in windows of {how.window}; {identity(d)}",
    ]
    if d.loss:
        chance = f" (chance {d.loss.chance:.3f})" if d.loss.chance else ""
        lines.append(f"{d.loss.name} loss {d.loss.value:.3f}{chance}; {how.seconds} s on {how.device}")
    predicted = d.theory.growth_exponent
    beside = f"; random weights predict {predicted:.3g}" if predicted is not None else ""
    lines.append(f"median norm ~ layer^{_short(d.summary.growth_exponent)}{beside}")
    return [piece for line in [*lines, *(f"note: {note}" for note in d.notes)] for piece in textwrap.wrap(line, WIDTH)]


def identity(d: Diagnosis) -> str:
    error = d.identity_error
    if not error > -math.inf:
        return f"what {d.placement} reads is no sum of contributions, so no identity was checked"
    return f"residual identity holds to {error:.1e}"


def _verdicts(d: Diagnosis) -> list[str]:
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
    for value, label, log in LINES:
        values = column(d.layers, value)
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
    shown = [each for each in COLUMNS if any(each[0](row) is not None for row in d.layers)]
    norms = column(d.layers, lambda row: row.norm_median)
    largest = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    heading = "".join(f"{title:>{width}}" for _, title, width in shown)
    lines = [heading, "-" * len(heading)]
    for row, norm in zip(d.layers, norms, strict=True):
        cells = "".join(f"{_short(value(row)):>{width}}" for value, _, width in shown)
        drawn = bar(norm, largest, width=10)
        lines.append(f"{cells}  {drawn}".rstrip())
    lines.append("turn: 1 - cos before and after; tokens: mean cosine; skip: change of the loss without the layer")
    return lines


_SHADES = " ·░▒▓█"


def _mixing(d: Diagnosis) -> list[str]:
    """|M| in shades: a row is what a layer reads, a column a source (the embedding, then every branch)."""
    if d.mixing is None or not d.mixing.matrix:
        return []
    matrix = d.mixing.matrix
    chosen = [*(d.mixing.reads or ()), len(matrix) - 1]
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


def _short(value: float | None) -> str:
    if value is None or value != value:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def compare_text(diagnoses: Sequence[Diagnosis]) -> str:
    """Several models side by side: one line each."""
    numbers: dict[str, Callable[[Summary], float]] = {
        "growth": lambda s: s.growth,
        "late": lambda s: s.late_contribution,
        "gradient": lambda s: s.gradient_spread,
        "tokens": lambda s: s.token_cosine,
        "entropy": lambda s: s.entropy,
        "sink": lambda s: s.sink_mass,
    }
    heading = f"{'model':<24}{'layers':>7}  {'placement':<12}" + "".join(f"{title:>9}" for title in numbers)
    lines = [heading, "-" * len(heading)]
    for d in diagnoses:
        cells = "".join(f"{_short(number(d.summary)):>9}" for number in numbers.values())
        lines.append(f"{d.name[:23]:<24}{len(d.layers):>7}  {d.placement[:11]:<12}{cells}")
    return "\n".join(lines)
