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
    Trace,
    band,
    bars,
    every_so_many,
    figure,
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


def per_layer(diagnoses: Sequence[Diagnosis], plot: Plot) -> Figure | None:
    """One line per model and value; None if nothing of it was measured."""
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
    return over_depth(diagnoses, data, y=plot.y, log=plot.log) if data else None


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


def over_depth(diagnoses: Sequence[Diagnosis], data: list[Trace], *, y: str, log: bool = False) -> Figure:
    """Axes of a picture over depth, with the flagged layers of a single model behind it."""
    drawn = figure(data, x="layer", y=y, log_y=log)
    depth = max(len(d.layers) for d in diagnoses)
    drawn["layout"]["xaxis"] |= {"tickvals": every_so_many(depth), "range": [-0.6, depth - 0.4]}
    if log:
        measured = [value for trace in data if trace.get("fill") is None for value in trace["y"]]
        drawn["layout"]["yaxis"] |= log_ticks(measured)
        drawn["layout"]["yaxis"] |= _range([v for v in measured if v is not None and math.isfinite(v) and v > 0])
    if len(diagnoses) == 1:
        drawn["layout"]["shapes"] = marks(diagnoses[0])
    return drawn


def _range(values: Sequence[float]) -> dict[str, object]:
    """What was measured fills the picture; a band may reach beyond it."""
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
    drawn = per_layer(diagnoses, NORMS)
    if drawn is not None and len(diagnoses) == 1:
        law = diagnoses[0].theory
        layers = range(len(diagnoses[0].layers))
        if law.orthogonal:
            drawn["data"].append(theory(layers, law.orthogonal, "if branches were orthogonal"))
        if law.xiong:
            drawn["data"].append(theory(layers, law.xiong.low, "Xiong's lower bound (random weights)", dash="dash"))
            drawn["data"].append(theory(layers, law.xiong.high, "Xiong's upper bound", dash="longdash"))
    return drawn


def tokens(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    drawn = per_layer(diagnoses, TOKENS)
    curve = diagnoses[0].theory.sphere_cosine
    if drawn is not None and len(diagnoses) == 1 and curve:
        drawn["data"].append(theory(range(len(curve)), curve, "attention alone, Q = K = V = I, beta = 1"))
    return drawn


def lengths(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    data: list[Trace] = []
    lines: dict[str, Callable[[LengthRow], float]] = {
        "largest weight": lambda row: row.max_weight,
        "RMS of the output": lambda row: row.attention_output_rms,
    }
    for number, d in enumerate(d for d in diagnoses if len(d.lengths) > 1):
        sizes = [row.length for row in d.lengths]
        for order, (label, value) in enumerate(lines.items()):
            alone = len(diagnoses) == 1
            name, colour = (label, order) if alone else (f"{d.name}: {label}", number)
            style = {"mode": "lines+markers", "dash": "solid" if alone else _DASHES[order]}
            data.append(line(sizes, [value(row) for row in d.lengths], name, colour, **style))
    if not data:
        return None
    if len(diagnoses) == 1:
        sizes, first = data[0]["x"], data[0]["y"][0]
        data.append(theory(sizes, [first * sizes[0] / n for n in sizes], "1/n: weight spread evenly"))
    drawn = figure(data, x="tokens in the window", y="mean over layers", log_x=True, log_y=True)
    drawn["layout"]["xaxis"] |= ticks(data[0]["x"])
    drawn["layout"]["yaxis"] |= log_ticks([value for trace in data for value in trace["y"]])
    return drawn


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
    drawn = over_depth(diagnoses, data, y="change of the loss (nats)")
    drawn["layout"]["xaxis"]["title"] = {"text": "layer that is skipped"}
    drawn["layout"]["showlegend"] = len(diagnoses) > 1 or bool(drawn["layout"].get("shapes"))
    return drawn


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
    drawn = figure([heat], x="source: 0 the embedding, then the branches", y="read by branch (the last: by the head)")
    drawn["layout"]["yaxis"]["autorange"] = "reversed"
    return drawn
