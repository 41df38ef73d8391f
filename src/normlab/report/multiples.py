"""Small multiples: one panel a subject, the same axes in all, as the dict of a plotly figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = 3
GAP = 0.06
# Okabe and Ito's palette: told apart by colour-blind readers, on light and dark paper.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#F0E442")


def small_multiples(
    panels: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    x: str,
    y: str,
    log_y: bool = False,
    columns: int = COLUMNS,
    axes: Mapping[str, Any] | None = None,
    hover: str = "x unified",
) -> tuple[dict[str, Any], int]:
    """(figure, height in pixels). `panels` maps a title to plotly traces; all panels share both axes.

    `hover`: "x unified" reads all lines of a panel at one place, "closest" one mark.
    """
    columns = min(columns, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"annotations": [], "legend": {"orientation": "h", "y": -0.25 / rows}, "margin": {"t": 30}}
    layout["hovermode"] = hover
    named: set[str] = set()
    for index, (title, traces) in enumerate(panels.items()):
        row, column = divmod(index, columns)
        left, right = _span(column, columns)
        top, bottom = 1 - _span(row, rows, 0.12)[0], 1 - _span(row, rows, 0.12)[1]
        tag = "" if index == 0 else str(index + 1)
        first = {} if index == 0 else {"matches": "x"}
        layout[f"xaxis{tag}"] = {"domain": [left, right], "anchor": f"y{tag}", **first}
        layout[f"yaxis{tag}"] = {
            "domain": [bottom, top],
            "anchor": f"x{tag}",
            **({} if index == 0 else {"matches": "y"}),
        }
        layout[f"yaxis{tag}"].update({"type": "log"} if log_y else {}, **(axes or {}))
        if index + columns >= len(panels):
            layout[f"xaxis{tag}"]["title"] = {"text": x}
        if column == 0:
            layout[f"yaxis{tag}"]["title"] = {"text": y}
        layout["annotations"].append(
            {"text": title, "x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper", "showarrow": False,
             "yanchor": "bottom", "font": {"size": 13}}
        )  # fmt: skip
        for trace in traces:
            name = str(trace.get("name", ""))
            shown = trace.get("showlegend", True) and name not in named
            shared = {"xaxis": f"x{tag}", "yaxis": f"y{tag}", "legendgroup": name, "showlegend": shown}
            named |= {name} if shown else set()
            data.append({**trace, **shared})
    return {"data": data, "layout": layout}, 90 + 210 * rows


def line(xs: Sequence[Any], ys: Sequence[Any], name: str, color: int = 0, **style: Any) -> dict[str, Any]:
    """A line trace; `dash`, `width` and `opacity` are styles."""
    drawn = {"color": PALETTE[color % len(PALETTE)], "width": style.pop("width", 2), "dash": style.pop("dash", "solid")}
    return {"type": "scatter", "mode": "lines", "x": list(xs), "y": list(ys), "name": name, "line": drawn, **style}


def heatmaps(panels: Mapping[str, Sequence[Sequence[float | None]]], *, x: str, y: str) -> tuple[dict[str, Any], int]:
    """Matrices with one colour scale, rows from the top."""
    traces = {
        title: [{"type": "heatmap", "z": [list(row) for row in matrix], "coloraxis": "coloraxis", "name": title}]
        for title, matrix in panels.items()
    }
    figure, height = small_multiples(traces, x=x, y=y, axes={"autorange": "reversed"}, hover="closest")
    figure["layout"]["coloraxis"] = {"colorscale": "Viridis", "cmin": 0, "colorbar": {"thickness": 12}}
    return figure, height + 60


def _span(index: int, count: int, gap: float = GAP) -> tuple[float, float]:
    size = (1 - gap * (count - 1)) / count
    return index * (size + gap), index * (size + gap) + size
