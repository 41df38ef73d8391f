"""Plots as plain plotly dicts: measured lines, theory dashed beside them, healthy models as a band, flagged layers marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlab.probes.measure.skips import reach
from normlab.probes.measure.summary import LengthRow
from normlab.probes.measure.table import LayerRow
from normlab.probes.show import words
from normlab.probes.show.body import flagged, marks
from normlab.probes.show.normal import band_of
from normlab.report.figures import (
    Figure,
    Style,
    Trace,
    band,
    bars,
    every_so_many,
    figure,
    heights,
    line,
    log_ticks,
    matrix,
    theory,
    ticks,
)

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

Value = Callable[[LayerRow], float | None]
_DASHES = ("solid", "dot", "dashdot", "dash")


@dataclass(frozen=True)
class Plot:
    """One picture over depth: its lines, what is on the axis, and which columns have a band of healthy models."""

    lines: dict[str, Value]
    y: str
    log: bool = False
    normal: dict[str, str] | None = None  # label of a line -> column of the reference


def per_layer(diagnoses: Sequence[Diagnosis], plot: Plot, beside: Sequence[Trace] = ()) -> Figure | None:
    """One line per model and value, and what is predicted beside a single one; None if nothing of it was measured."""
    data: list[Trace] = []
    for number, d in enumerate(diagnoses):
        for order, (label, value) in enumerate(plot.lines.items()):
            found = [value(row) for row in d.layers]
            if any(number is not None for number in found):
                alone = len(diagnoses) == 1
                name = label if alone else f"{d.name}: {label}"
                style = {"dash": "solid" if alone else _DASHES[order % len(_DASHES)]}
                data += _band(d, plot, label, order) if alone else []
                points = {"mode": "lines+markers", "marker": _markers(d, alone)}
                data.append(line(range(len(d.layers)), found, name, order if alone else number, **points, **style))
    return over_depth(diagnoses, data, beside=beside, y=plot.y, log=plot.log) if data else None


def _markers(d: Diagnosis, alone: bool) -> dict[str, object]:
    """Where several models share a picture, a cross marks the flagged layers of each."""
    odd = {} if alone else flagged(d)
    return {"size": [9 if i in odd else 5 for i in range(len(d.layers))],
            "symbol": ["x" if i in odd else "circle" for i in range(len(d.layers))]}  # fmt: skip


def _band(d: Diagnosis, plot: Plot, label: str, colour: int) -> list[Trace]:
    wanted = (plot.normal or {}).get(label)
    found = band_of(wanted, d) if wanted else None
    if found is None:
        return []
    drawn = band(found.layers, found.low, found.high, colour)
    return [{**drawn, "name": f"{label}: {found.models} healthy models", "showlegend": True}]


def over_depth(
    diagnoses: Sequence[Diagnosis],
    data: Sequence[Trace],
    *,
    y: str,
    x: str = "layer",
    log: bool = False,
    beside: Sequence[Trace] = (),
    layout: Style | None = None,
) -> Figure:
    """A picture over depth, with the flagged layers of a single model behind it; `data` alone sets the range."""
    depth = max(len(d.layers) for d in diagnoses)
    across = {"tickvals": every_so_many(depth), "range": [-0.6, depth - 0.4]}
    measured = heights(data)
    down = {**log_ticks(measured), **_range(measured)} if log else None
    shapes = {"shapes": marks(diagnoses[0])} if len(diagnoses) == 1 else {}
    layout = {**shapes, **(layout or {})}
    return figure([*data, *beside], x=x, y=y, log_y=log, across=across, down=down, layout=layout)


def _range(measured: Sequence[float | None]) -> dict[str, object]:
    """What was measured fills the picture; a band may reach beyond it."""
    values = [v for v in measured if v is not None and math.isfinite(v) and v > 0]
    if not values:
        return {}
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.15, 0.08 * (high - low))
    return {"range": [low - margin, high + margin]}


def branch_plot(diagnoses: Sequence[Diagnosis]) -> Plot:
    """A line for every kind of branch that some layer has."""
    kinds = dict.fromkeys(branch.kind for d in diagnoses for row in d.layers for branch in row.branches)

    def ratio(kind: str) -> Value:
        return lambda row: branch.typical if (branch := row.branch(kind)) else None

    normal = {words.branch(kind): f"{kind}_typical" for kind in kinds}
    return Plot({words.branch(kind): ratio(kind) for kind in kinds}, "size beside the stream (ratio)", True, normal)


NORMS = Plot(
    {"median token": lambda row: row.norm_median, "mean over tokens": lambda row: row.norm},
    "length of the stream (L2 norm)",
    True,
)
TOKENS = Plot(
    {"all coordinates": lambda row: row.token_cosine, "without the 3 largest": lambda row: row.token_cosine_robust},
    "mean cosine between tokens",
    normal={"without the 3 largest": "token_cosine_robust"},
)
ATTENTION = Plot(
    {
        "entropy / log n": lambda row: row.entropy,
        "largest weight": lambda row: row.max_weight,
        "share on one key": lambda row: row.sink_mass,
    },
    "attention (0 to 1)",
    normal={"entropy / log n": "entropy"},
)
GRADIENTS = Plot(
    {
        "attention's parameters": lambda row: row.attention_gradient,
        "FFN's parameters": lambda row: row.ffn_gradient,
        "all parameters": lambda row: row.gradient_norm,
        "the stream": lambda row: row.stream_gradient,
    },
    "gradient of the loss (L2 norm)",
    True,
)
STREAMS = Plot(
    {
        "cosine between streams": lambda row: row.homogenisation,
        "gain of the mixings so far": lambda row: row.composite_gain,
    },
    "parallel streams",
)


def norms(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    beside: list[Trace] = []
    if len(diagnoses) == 1:
        law, layers = diagnoses[0].theory, range(len(diagnoses[0].layers))
        if law.orthogonal:
            beside.append(theory(layers, law.orthogonal, "if branches were orthogonal"))
        if law.xiong:
            beside.append(theory(layers, law.xiong.low, "Xiong's lower bound (random weights)", dash="dash"))
            beside.append(theory(layers, law.xiong.high, "Xiong's upper bound", dash="longdash"))
    return per_layer(diagnoses, NORMS, beside)


def tokens(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    curve = diagnoses[0].theory.sphere_cosine if len(diagnoses) == 1 else None
    beside = [theory(range(len(curve)), curve, "attention alone, Q = K = V = I, beta = 1")] if curve else []
    return per_layer(diagnoses, TOKENS, beside)


def lengths(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    shown = [d for d in diagnoses if len(d.lengths) > 1]
    if not shown:
        return None
    data: list[Trace] = []
    lines: dict[str, Callable[[LengthRow], float]] = {
        "largest weight": lambda row: row.max_weight,
        "RMS of the output": lambda row: row.attention_output_rms,
    }
    for number, d in enumerate(shown):
        sizes = [row.length for row in d.lengths]
        for order, (label, value) in enumerate(lines.items()):
            alone = len(diagnoses) == 1
            name, colour = (label, order) if alone else (f"{d.name}: {label}", number)
            style = {"mode": "lines+markers", "dash": "solid" if alone else _DASHES[order]}
            data.append(line(sizes, [value(row) for row in d.lengths], name, colour, **style))
    first = shown[0].lengths
    sizes = [row.length for row in first]
    if len(diagnoses) == 1:
        data.append(theory(sizes, [first[0].max_weight * sizes[0] / n for n in sizes], "1/n: weight spread evenly"))
    x, y, down = "tokens in the window", "mean over layers", log_ticks(heights(data))
    return figure(data, x=x, y=y, log_x=True, log_y=True, across=ticks(sizes), down=down)


def skips(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    """Bars with 95 % intervals; where one layer towers over the rest, the others are still read off the table."""
    data = []
    for number, d in enumerate(diagnoses):
        if d.causal:
            times = reach(d.causal.batches)
            reached = [times * error if math.isfinite(error) else None for error in d.causal.error]
            data.append(bars(range(len(d.layers)), d.causal.change, d.name, number, reach=reached))
    if not data:
        return None
    named = {"showlegend": len(diagnoses) > 1 or bool(marks(diagnoses[0]))}
    return over_depth(diagnoses, data, y="change of the loss (nats)", x="layer that is skipped", layout=named)


def angles(d: Diagnosis) -> Figure | None:
    if len(d.angular) < 3:
        return None
    depth = len(d.angular)
    z = [[row[n] if n < len(row) else None for row in d.angular] for n in range(depth)]
    heat = matrix(z, x=list(range(depth)), y=list(range(1, depth + 1)), colorbar={"title": {"text": "angle / pi"}})
    return figure([heat], x="first layer of the run", y="layers in the run")


def mixing(d: Diagnosis) -> Figure | None:
    """M of h_l = sum_i M[l, i] v_i, mean over tokens."""
    if d.mixing is None or not d.mixing.matrix:
        return None
    heat = matrix(d.mixing.matrix, colorbar={"title": {"text": "M"}})
    x, y = "source: 0 the embedding, then the branches", "read by branch (the last: by the head)"
    return figure([heat], x=x, y=y, down={"autorange": "reversed"})
