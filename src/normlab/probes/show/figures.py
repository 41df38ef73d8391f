"""Plots as plain plotly dicts: measured lines, theory dashed beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from normlab.probes.diagnosis import Diagnosis
from normlab.probes.measure.summary import LengthRow
from normlab.probes.measure.table import LayerRow

# Okabe and Ito's colours: apart for every kind of colour vision, on white and on black.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
Figure = dict[str, Any]


def line(x: Sequence[Any], y: Sequence[Any], name: str, **style: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines+markers", "x": list(x), "y": list(y), "name": name, **style}


def layout(x: str, y: str, *, log: bool = False) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": y}}
    if log:
        axis |= {"type": "log", "exponentformat": "power"}
    return {"xaxis": {"title": {"text": x}}, "yaxis": axis, "legend": {"orientation": "h", "y": -0.25}}


Value = Callable[[LayerRow], float | None]


def per_layer(diagnoses: Sequence[Diagnosis], lines: dict[str, Value], y: str, *, log: bool = False) -> Figure | None:
    """One line per model and value; None if nothing of it was measured."""
    data: list[dict[str, Any]] = []
    for number, d in enumerate(diagnoses):
        for dash, (label, value) in zip(("solid", "dot", "dashdot"), lines.items(), strict=False):
            found = [value(row) for row in d.layers]
            if any(number is not None for number in found):
                name = label if len(diagnoses) == 1 else f"{d.name}: {label}"
                colour = COLOURS[(number if len(diagnoses) > 1 else len(data)) % len(COLOURS)]
                style = {"color": colour, "dash": dash if len(diagnoses) > 1 else "solid"}
                data.append(line(range(len(d.layers)), found, name, line=style))
    return {"data": data, "layout": layout("layer", y, log=log)} if data else None


NORMS: dict[str, Value] = {
    "median token": lambda row: row.norm_median,
    "mean over tokens": lambda row: row.norm,
}
TOKENS: dict[str, Value] = {
    "all coordinates": lambda row: row.token_cosine,
    "without the 3 largest": lambda row: row.token_cosine_robust,
}


def norms(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    figure = per_layer(diagnoses, NORMS, "||h||", log=True)
    if figure is not None and len(diagnoses) == 1:
        theory = diagnoses[0].theory
        layers = range(len(diagnoses[0].layers))
        if theory.orthogonal:
            figure["data"].append(_dashed(layers, theory.orthogonal, "if branches were orthogonal", "#888888"))
        if theory.xiong:
            figure["data"].append(_dashed(layers, theory.xiong.low, "Xiong's lower bound (random weights)", "#999999"))
            figure["data"].append(_dashed(layers, theory.xiong.high, "Xiong's upper bound", "#999999"))
    return figure


def tokens(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    figure = per_layer(diagnoses, TOKENS, "mean cosine between tokens")
    curve = diagnoses[0].theory.sphere_cosine
    if figure is not None and len(diagnoses) == 1 and curve:
        figure["data"].append(_dashed(range(len(curve)), curve, "attention alone, Q = K = V = I, beta = 1", "#888888"))
    return figure


def lengths(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    data: list[dict[str, Any]] = []
    lines: dict[str, Callable[[LengthRow], float]] = {
        "largest weight": lambda row: row.max_weight,
        "RMS of the output": lambda row: row.attention_output_rms,
    }
    for number, d in enumerate(d for d in diagnoses if len(d.lengths) > 1):
        sizes = [row.length for row in d.lengths]
        for dash, (label, value) in zip(("solid", "dot"), lines.items(), strict=False):
            name = label if len(diagnoses) == 1 else f"{d.name}: {label}"
            style = {"color": COLOURS[number % len(COLOURS)], "dash": dash}
            data.append(line(sizes, [value(row) for row in d.lengths], name, line=style))
    if not data:
        return None
    if len(diagnoses) == 1:
        sizes, first = data[0]["x"], data[0]["y"][0]
        data.append(_dashed(sizes, [first * sizes[0] / n for n in sizes], "1/n: weight spread evenly", "#888888"))
    drawn = layout("tokens", "mean over layers", log=True)
    drawn["xaxis"] |= {"type": "log", "tickvals": data[0]["x"], "ticktext": [str(n) for n in data[0]["x"]]}
    return {"data": data, "layout": drawn}


def skips(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    data = [
        {
            "type": "bar",
            "x": list(range(len(d.layers))),
            "y": list(d.causal.change),
            "name": d.name,
            "marker": {"color": COLOURS[number % len(COLOURS)]},
        }
        for number, d in enumerate(diagnoses)
        if d.causal
    ]
    return {"data": data, "layout": layout("layer that is skipped", "change of the loss")} if data else None


def angles(d: Diagnosis) -> Figure | None:
    if len(d.angular) < 3:
        return None
    depth = len(d.angular)
    z = [[row[n] if n < len(row) else None for row in d.angular] for n in range(depth)]
    heat = {"type": "heatmap", "z": z, "x": list(range(depth)), "y": list(range(1, depth + 1)), "colorscale": "Viridis",
            "colorbar": {"title": {"text": "angle / pi"}}}  # fmt: skip
    return {"data": [heat], "layout": layout("first layer of the run", "layers in the run")}


def mixing(d: Diagnosis) -> Figure | None:
    """M of h_l = sum_i M[l, i] v_i, mean over tokens."""
    if d.mixing is None or not d.mixing.matrix:
        return None
    matrix = [list(line) for line in d.mixing.matrix]
    heat = {"type": "heatmap", "z": matrix, "colorscale": "Viridis", "colorbar": {"title": {"text": "M"}}}
    drawn = layout("source: 0 the embedding, then the branches", "read by branch (the last: by the head)")
    drawn["yaxis"]["autorange"] = "reversed"
    return {"data": [heat], "layout": drawn}


def _dashed(x: Sequence[Any], y: Sequence[Any], name: str, colour: str) -> dict[str, Any]:
    return line(x, y, name, mode="lines", line={"dash": "dash", "color": colour})
