"""A diagnosis in a terminal: the answer and the body first, verdicts, sparklines, then a layer table. As wide as told."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from normlab.probes.judge.verdicts import listed
from normlab.probes.measure.skips import reach
from normlab.probes.measure.summary import Summary
from normlab.probes.measure.table import LayerRow, column, kinds
from normlab.probes.show.body import body_of, flagged, halves
from normlab.probes.show.words import branch, parameters, verdict_name
from normlab.report.tables import Column, fitted
from normlab.report.terminal import bar, sparkline, strip

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

WIDTH = 100
MARK = {"bad": "[FAULT]", "warn": "[WARN] ", "note": "[NOTE] "}

Value = Callable[[LayerRow], float | None]

# Value, heading, how long it stays where the terminal is narrow.
COLUMNS: tuple[tuple[Value, str, int], ...] = (
    (lambda row: row.layer, "layer", 99),
    (lambda row: row.norm_median, "|h|", 9),
    (lambda row: row.attention_ratio, "attn/h", 8),
    (lambda row: row.ffn_ratio, "ffn/h", 7),
    (lambda row: row.block_influence, "turn", 3),
    (lambda row: row.token_cosine, "tokens", 2),
    (lambda row: row.entropy, "entropy", 6),
    (lambda row: row.sink_mass, "sink", 1),
    (lambda row: row.gradient_norm, "gradient", 4),
    (lambda row: row.skip_loss_change, "skip", 5),
)
_LEGEND = {
    "|h|": "length of the median token",
    "attn/h": "attention over stream",
    "ffn/h": "FFN over stream",
    "turn": "1 - cos before and after",
    "tokens": "mean cosine between tokens",
    "entropy": "of attention, over log n",
    "sink": "attention on one key",
    "gradient": "L2 norm",
    "skip": "change of the loss without the layer, nats, ± its 95%-interval",
}
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


def as_text(diagnosis: Diagnosis, *, width: int = WIDTH) -> str:
    """Of an encoder-decoder both halves, under one answer and one list of verdicts."""
    stacks = halves(diagnosis)
    blocks = [
        _answer(diagnosis, width),
        *(_header(half, width) for half in stacks),
        _verdicts(diagnosis, width),
        *(block(half, width) for half in stacks for block in (_title(stacks), _lines, _table, _mixing)),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _answer(d: Diagnosis, width: int) -> list[str]:
    """The sentence, and the body: a sign a layer."""
    stacks = halves(d)
    lines = textwrap.wrap(d.headline, width)
    for half in stacks:
        lines += ["", *([half.name] if len(stacks) > 1 else []), *body_lines(half, width)]
    return lines


def _title(stacks: Sequence[Diagnosis]) -> Callable[[Diagnosis, int], list[str]]:
    return lambda d, _: [d.name] if len(stacks) > 1 else []


def body_lines(d: Diagnosis, width: int) -> list[str]:
    """in · · ! · · out, with the numbers of some layers above."""
    overall = body_of(d).overall
    room = width - 15
    signs = strip(overall[1:-1], width=room)
    size = -(-len(d.layers) // len(signs)) if signs else 1
    scale = [" "] * (len(signs) + 8)
    for place in range(0, len(signs), 10 if len(signs) > 12 else 5):
        label = str(place * size)
        scale[place : place + len(label)] = label
    named = {"·": "fine", "i": "note", "!": "warning", "X": "fault"}
    first, last = strip(overall[:1], width=1), strip(overall[-1:], width=1)
    seen = [f"{sign} {name}" for sign, name in named.items() if sign in first + signs + last]
    return [
        f"{'layer':<7}{''.join(scale).rstrip()}",
        f"in {first}   {signs}   {last} out",
        " " * 7 + "   ".join(seen) + (f"   ({size} layers a sign)" if size > 1 else ""),
    ]


def _header(d: Diagnosis, width: int) -> list[str]:
    how = d.how
    where = "inferred from data" if d.inferred else "known architecture"
    lines = [
        f"{d.name}: {len(d.layers)} x {d.architecture}, {d.placement} ({where}), "
        f"{parameters(how.parameters)}, d = {how.width}",
        f"{how.tokens} tokens in windows of {how.window}; {identity(d)}; {how.seconds} s on {how.device}",
    ]
    if sentence := loss_sentence(d):
        lines.append(sentence)
    predicted = d.theory.growth_exponent
    beside = f"; random weights predict {predicted:.3g}" if predicted is not None else ""
    lines.append(f"median norm ~ layer^{_short(d.summary.growth_exponent)}{beside}")
    return [piece for line in [*lines, *(f"note: {note}" for note in d.notes)] for piece in textwrap.wrap(line, width)]


def loss_sentence(d: Diagnosis) -> str:
    """The loss beside what knowing nothing, and knowing only token frequencies, would give."""
    said = d.readings.output
    if said is not None and d.loss is not None:
        chance = f"; blind guessing gives {said.chance:.3f}" if said.chance else ""
        return f"{d.loss.name} loss {said.loss:.3f} nats{chance}, token frequencies alone {said.frequencies:.3f}"
    if d.loss is None:
        return ""
    chance = f" (chance {d.loss.chance:.3f})" if d.loss.chance else ""
    return f"{d.loss.name} loss {d.loss.value:.3f}{chance}"


def identity(d: Diagnosis) -> str:
    error = d.identity_error
    if not error > -math.inf:
        return f"what {d.placement} reads is no sum of contributions, so no identity was checked"
    broken = tuple(breach.layer for breach in (d.readings.breaches or ()))
    if broken:
        return f"the residual identity fails in {listed(broken)}"
    return f"residual identity holds to {error:.1e}"


def _verdicts(d: Diagnosis, width: int) -> list[str]:
    lines: list[str] = []
    for verdict in d.verdicts:
        title = f"{MARK[verdict.severity]} {verdict_name(verdict)}: {verdict.title}"
        lines += _wrap(title, " " * 8, width)
        for label, text in (("normal", verdict.normal), ("why", verdict.why), ("try", verdict.advice)):
            lines += _wrap(f"        {label}: {text}", " " * 12, width)
    return lines


def _wrap(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=True)


def _lines(d: Diagnosis, width: int) -> list[str]:
    lines = []
    room = width - 28 - 22
    further = [(_size_of(kind), f"{branch(kind)} / stream", True) for kind in kinds(d.layers)[2:]]
    for value, label, log in (*LINES[:3], *further, *LINES[3:]):
        values = column(d.layers, value)
        known = [value for value in values if math.isfinite(value)]
        if known:
            drawn = sparkline(_squeeze(values, room), log=log)
            lines.append(f"{label[:27]:<28}{drawn}  {_short(known[0])} .. {_short(known[-1])}")
    return lines


def _squeeze(values: list[float], most: int) -> list[float]:
    """At most so many points: the mean of each run of layers."""
    if len(values) <= most:
        return values
    size = -(-len(values) // most)
    groups = [[v for v in values[i : i + size] if math.isfinite(v)] for i in range(0, len(values), size)]
    return [sum(group) / len(group) if group else math.nan for group in groups]


def _table(d: Diagnosis, width: int) -> list[str]:
    odd = flagged(d)
    known = (*COLUMNS[:4], *_further(d), *COLUMNS[4:])
    shown = [each for each in known if any(each[0](row) is not None for row in d.layers)]
    columns = [
        Column(title, tuple(_cell(d, row, title, value) for row in d.layers), keep) for value, title, keep in shown
    ]
    signs = {"warn": "!", "bad": "X"}
    if odd:
        columns.insert(1, Column(" ", tuple(signs.get(odd.get(row.layer, ""), " ") for row in d.layers), 50, text=True))
    lines, dropped = fitted(columns, width=width)
    norms = column(d.layers, lambda row: row.norm_median)
    largest = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    used = max(map(len, lines))
    room = min(20, width - used - 2)
    if room >= 6:
        bars = ["", "", *(bar(norm, largest, width=room) for norm in norms)]
        lines = [f"{line:<{used}}  {drawn}".rstrip() for line, drawn in zip(lines, bars, strict=True)]
    legend = "; ".join(
        f"{c.title}: {_LEGEND[c.title]}" for c in columns if c.title in _LEGEND and c.title not in dropped
    )
    lines += textwrap.wrap(legend, width)
    if dropped:
        lines += textwrap.wrap(f"no room here for {', '.join(dropped)}: in a wider terminal, or on the page", width)
    return lines


def _further(d: Diagnosis) -> list[tuple[Value, str, int]]:
    """Columns of branches besides attention and FFN: cross-attention, a state-space mixer."""
    return [(_size_of(kind), f"{branch(kind)}/h", 7) for kind in kinds(d.layers) if kind not in ("attention", "ffn")]


def _size_of(kind: str) -> Value:
    return lambda row: found.ratio if (found := row.branch(kind)) else None


def _cell(d: Diagnosis, row: LayerRow, title: str, value: Value) -> str:
    """A number; what a skip costs has its interval beside it."""
    text = _short(value(row))
    if title != "skip" or d.causal is None or row.layer >= len(d.causal.error):
        return text
    error = reach(d.causal.batches) * d.causal.error[row.layer]
    return f"{text} ±{error:.2g}" if math.isfinite(error) else text


_SHADES = " ·░▒▓█"


def _mixing(d: Diagnosis, width: int) -> list[str]:
    """|M| in shades: a row is what a layer reads, a column a source (the embedding, then every branch)."""
    if d.mixing is None or not d.mixing.matrix:
        return []
    matrix = d.mixing.matrix
    chosen = [*(d.mixing.reads or ()), len(matrix) - 1]
    shown = _thin(chosen, 24)
    what = f"depth mixing |M|, each row by its largest; columns: embedding, then {len(matrix[0]) - 1} branches"
    lines = textwrap.wrap(what, width)
    for read in shown:
        row = _squeeze([abs(value) for value in matrix[read]], width - 20)
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


def compare_text(diagnoses: Sequence[Diagnosis], *, width: int = WIDTH) -> str:
    """Several models side by side: one line each."""
    numbers: dict[str, Callable[[Summary], float]] = {
        "growth": lambda s: s.growth,
        "late": lambda s: s.late_contribution,
        "gradient": lambda s: s.gradient_spread,
        "tokens": lambda s: s.token_cosine,
        "entropy": lambda s: s.entropy,
        "sink": lambda s: s.sink_mass,
    }
    columns = [
        Column("model", tuple(d.name[: max(12, width // 3)] for d in diagnoses), 99, text=True),
        Column("layers", tuple(str(len(d.layers)) for d in diagnoses), 2),
        Column("placement", tuple(d.placement[:16] for d in diagnoses), 3, text=True),
        *(
            Column(title, tuple(_short(number(d.summary)) for d in diagnoses), 4 + len(numbers) - order)
            for order, (title, number) in enumerate(numbers.items())
        ),
    ]
    lines, _ = fitted(columns, width=width)
    return "\n".join(lines)
