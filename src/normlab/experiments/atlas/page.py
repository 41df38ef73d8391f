"""The atlas as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normlab.experiments.atlas import Entry
from normlab.report import Page

COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7", "#bab0ac")


def rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The table: one line per scheme. Growth is taken from behind layer 1 to the last layer's last branch."""
    return [
        {
            "scheme": e.scheme,
            "growth": e.stream[-2] / e.stream[2],
            "law": e.law[-2] / e.law[2] if e.law[-2] and e.law[2] else None,
            "last adds": e.contribution[-1] if e.contribution else None,
            "grad 1/L": (e.gradient_share[0] / e.gradient_share[-1]) ** 0.5 if e.gradient_share[-1] else None,
            "parameters": e.residual_parameters,
            "step": e.step_ratio,
        }
        for e in entries
    ]


def write(entries: Sequence[Entry], path: Path, *, shape: str, command: str) -> Path:
    page = Page("Schemes at initialisation", subtitle=shape)
    page.text(
        "Each scheme with its own initialisation, the same shape and the same text, before any training: how what the "
        "branches read grows with depth, which layers get the gradient, how depth is mixed, and what a step costs.",
        style="lead",
    )
    page.heading("The table")
    page.table(
        rows(entries),
        name="atlas",
        caption="growth: rms that the last branch reads over the rms behind layer 1; law: the same by the closed form, which "
        "assumes unit, independent branches (real ones start smaller: compare shapes). last adds: size of the last "
        "branch's contribution over what it read. grad 1/L: gradient norm of the first layer over the last's. parameters: "
        "of the residual path. step: time of a training step over the first scheme's, interleaved, median.",
    )
    page.heading("How the stream grows")
    page.figure(_curves(entries, "stream", "branch", "rms of what the branch reads", log=True, law=True), height=460,
                caption="Solid: measured. Dotted: the scheme's closed form for unit branches.")  # fmt: skip
    page.heading("Who gets the gradient")
    page.figure(_curves(entries, "gradient_share", "layer", "share of the squared gradient norm", log=True), height=420)
    page.heading("What each branch adds")
    page.figure(_curves(entries, "contribution", "branch", "|branch output| / |what it read|", log=True), height=420)
    page.heading("How far each branch turns the stream")
    page.figure(_curves(entries, "influence", "branch", "1 - cos(h, next h)", log=True), height=420)
    mixed = [e for e in entries if e.mixing is not None and _uneven(e.mixing)]
    if mixed:
        page.heading("How depth is mixed")
        page.text("Schemes that start as a plain sum or mean of their branches have equal rows, and are not drawn.")
        page.text(
            "Row l: the weight of each source in what branch l reads, relative to the row's largest; last row: the head."
        )
        for e in mixed:
            page.figure(_heat(e), height=360, caption=f"{e.scheme}: {e.equation}")
    page.heading("How it was measured")
    page.code(command)
    return page.write(path)


def _uneven(mixing: list[list[float]]) -> bool:
    return any(max(row[: i + 1]) - min(row[: i + 1]) > 1e-6 * max(row) for i, row in enumerate(mixing))


def _curves(entries: Sequence[Entry], field: str, x: str, y: str, *, log: bool, law: bool = False) -> dict[str, Any]:
    data = []
    for index, entry in enumerate(entries):
        color = COLORS[index % len(COLORS)]
        values = getattr(entry, field)
        line = {"x": list(range(1, len(values) + 1)), "y": values, "name": entry.scheme, "mode": "lines+markers"}
        data.append({**line, "marker": {"size": 4}, "line": {"color": color}, "legendgroup": entry.scheme})
        if law and entry.law[0]:
            scale = entry.stream[0] / entry.law[0]
            shown = [None if v is None else v * scale for v in entry.law]
            data.append(
                {**line, "y": shown, "mode": "lines", "name": f"{entry.scheme}, law", "showlegend": False,
                 "legendgroup": entry.scheme, "line": {"color": color, "dash": "dot", "width": 1}}
            )  # fmt: skip
    axis = {"title": {"text": y}, "type": "log" if log else "linear"}
    return {
        "data": data,
        "layout": {"xaxis": {"title": {"text": x}}, "yaxis": axis, "legend": {"orientation": "h", "y": -0.2}},
    }


def _heat(entry: Entry) -> dict[str, Any]:
    assert entry.mixing is not None
    scaled = [[v / (max(map(abs, row)) or 1.0) for v in row] for row in entry.mixing]
    for row, values in enumerate(scaled):
        values[row + 1 :] = [None] * (len(values) - row - 1)  # type: ignore[list-item]
    trace = {"type": "heatmap", "z": scaled, "colorscale": "Viridis", "zmin": 0, "zmax": 1, "hoverongaps": False}
    axes = {"xaxis": {"title": {"text": "source"}}, "yaxis": {"title": {"text": "read"}, "autorange": "reversed"}}
    return {"data": [trace], "layout": axes}
