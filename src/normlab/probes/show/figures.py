"""Plots as plain plotly dicts: measured lines, theory dashed beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlab.probes.diagnosis import Diagnosis

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


def column(d: Diagnosis, key: str) -> list[Any]:
    return [row.get(key) for row in d.layers]


def per_layer(diagnoses: list[Diagnosis], keys: dict[str, str], y: str, *, log: bool = False) -> Figure | None:
    """One line per model and key; None if nothing of it was measured."""
    data: list[dict[str, Any]] = []
    for number, d in enumerate(diagnoses):
        for dash, (key, label) in zip(("solid", "dot", "dashdot"), keys.items(), strict=False):
            if any(value is not None for value in column(d, key)):
                name = label if len(diagnoses) == 1 else f"{d.name}: {label}"
                colour = COLOURS[(number if len(diagnoses) > 1 else len(data)) % len(COLOURS)]
                style = {"color": colour, "dash": dash if len(diagnoses) > 1 else "solid"}
                data.append(line(range(len(d.layers)), column(d, key), name, line=style))
    return {"data": data, "layout": layout("layer", y, log=log)} if data else None


def norms(diagnoses: list[Diagnosis]) -> Figure | None:
    figure = per_layer(diagnoses, {"norm_median": "median token", "norm": "mean over tokens"}, "||h||", log=True)
    if figure is not None and len(diagnoses) == 1:
        theory = diagnoses[0].theory
        layers = range(len(diagnoses[0].layers))
        if theory.get("orthogonal"):
            figure["data"].append(_dashed(layers, theory["orthogonal"], "if branches were orthogonal", "#888888"))
        if theory.get("xiong"):
            figure["data"].append(
                _dashed(layers, theory["xiong"]["low"], "Xiong's lower bound (random weights)", "#999999")
            )
            figure["data"].append(_dashed(layers, theory["xiong"]["high"], "Xiong's upper bound", "#999999"))
    return figure


def tokens(diagnoses: list[Diagnosis]) -> Figure | None:
    keys = {"token_cosine": "all coordinates", "token_cosine_robust": "without the 3 largest"}
    figure = per_layer(diagnoses, keys, "mean cosine between tokens")
    if figure is not None and len(diagnoses) == 1 and diagnoses[0].theory.get("sphere_cosine"):
        curve = diagnoses[0].theory["sphere_cosine"]
        figure["data"].append(_dashed(range(len(curve)), curve, "attention alone, Q = K = V = I, beta = 1", "#888888"))
    return figure


def lengths(diagnoses: list[Diagnosis]) -> Figure | None:
    data = []
    names = {"max_weight": "largest weight", "attention_output_rms": "RMS of the output"}
    for number, d in enumerate(d for d in diagnoses if len(d.lengths) > 1):
        sizes = [row["length"] for row in d.lengths]
        for dash, (key, label) in zip(("solid", "dot"), names.items(), strict=False):
            name = label if len(diagnoses) == 1 else f"{d.name}: {label}"
            style = {"color": COLOURS[number % len(COLOURS)], "dash": dash}
            data.append(line(sizes, [row[key] for row in d.lengths], name, line=style))
    if not data:
        return None
    if len(diagnoses) == 1:
        sizes, first = data[0]["x"], data[0]["y"][0]
        data.append(_dashed(sizes, [first * sizes[0] / n for n in sizes], "1/n: weight spread evenly", "#888888"))
    drawn = layout("tokens", "mean over layers", log=True)
    drawn["xaxis"] |= {"type": "log", "tickvals": data[0]["x"], "ticktext": [str(n) for n in data[0]["x"]]}
    return {"data": data, "layout": drawn}


def skips(diagnoses: list[Diagnosis]) -> Figure | None:
    data = [
        {
            "type": "bar",
            "x": list(range(len(d.layers))),
            "y": d.causal["change"],
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
    matrix = (d.mixing or {}).get("matrix")
    if not matrix:
        return None
    heat = {"type": "heatmap", "z": matrix, "colorscale": "Viridis", "colorbar": {"title": {"text": "M"}}}
    drawn = layout("source: 0 the embedding, then the branches", "read by branch (the last: by the head)")
    drawn["yaxis"]["autorange"] = "reversed"
    return {"data": [heat], "layout": drawn}


def _dashed(x: Sequence[Any], y: Sequence[Any], name: str, colour: str) -> dict[str, Any]:
    return line(x, y, name, mode="lines", line={"dash": "dash", "color": colour})
