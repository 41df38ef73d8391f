"""Plots as plain plotly dicts: measured lines, theory dashed beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from normlab.probes.measure.summary import LengthRow
from normlab.probes.measure.table import LayerRow
from normlab.report.figures import Figure, Trace, bars, figure, line, matrix, theory, ticks

if TYPE_CHECKING:
    from normlab.probes.diagnosis import Diagnosis

Value = Callable[[LayerRow], float | None]


def per_layer(diagnoses: Sequence[Diagnosis], lines: dict[str, Value], y: str, *, log: bool = False) -> Figure | None:
    """One line per model and value; None if nothing of it was measured."""
    data: list[Trace] = []
    for number, d in enumerate(diagnoses):
        for dash, (label, value) in zip(("solid", "dot", "dashdot"), lines.items(), strict=False):
            found = [value(row) for row in d.layers]
            if any(number is not None for number in found):
                name = label if len(diagnoses) == 1 else f"{d.name}: {label}"
                colour = number if len(diagnoses) > 1 else len(data)
                style = dash if len(diagnoses) > 1 else "solid"
                data.append(line(range(len(d.layers)), found, name, colour, mode="lines+markers", dash=style))
    return figure(data, x="layer", y=y, log_y=log) if data else None


NORMS: dict[str, Value] = {
    "median token": lambda row: row.norm_median,
    "mean over tokens": lambda row: row.norm,
}
TOKENS: dict[str, Value] = {
    "all coordinates": lambda row: row.token_cosine,
    "without the 3 largest": lambda row: row.token_cosine_robust,
}


def norms(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    drawn = per_layer(diagnoses, NORMS, "||h||", log=True)
    if drawn is not None and len(diagnoses) == 1:
        law = diagnoses[0].theory
        layers = range(len(diagnoses[0].layers))
        if law.orthogonal:
            drawn["data"].append(theory(layers, law.orthogonal, "if branches were orthogonal"))
        if law.xiong:
            drawn["data"].append(theory(layers, law.xiong.low, "Xiong's lower bound (random weights)"))
            drawn["data"].append(theory(layers, law.xiong.high, "Xiong's upper bound"))
    return drawn


def tokens(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    drawn = per_layer(diagnoses, TOKENS, "mean cosine between tokens")
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
        for dash, (label, value) in zip(("solid", "dot"), lines.items(), strict=False):
            name = label if len(diagnoses) == 1 else f"{d.name}: {label}"
            data.append(line(sizes, [value(row) for row in d.lengths], name, number, mode="lines+markers", dash=dash))
    if not data:
        return None
    if len(diagnoses) == 1:
        sizes, first = data[0]["x"], data[0]["y"][0]
        data.append(theory(sizes, [first * sizes[0] / n for n in sizes], "1/n: weight spread evenly"))
    drawn = figure(data, x="tokens", y="mean over layers", log_x=True, log_y=True)
    drawn["layout"]["xaxis"] |= ticks(data[0]["x"])
    return drawn


def skips(diagnoses: Sequence[Diagnosis]) -> Figure | None:
    data = [
        bars(range(len(d.layers)), d.causal.change, d.name, number) for number, d in enumerate(diagnoses) if d.causal
    ]
    return figure(data, x="layer that is skipped", y="change of the loss") if data else None


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
