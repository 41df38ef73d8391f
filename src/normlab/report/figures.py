"""One vocabulary of pictures, as dicts of plotly figures: lines, theory beside them, bands, bars, intervals, matrices.

figure([line(xs, ys, "pre_norm", scheme_colour("pre_norm")), theory(xs, law, "law")], x="branch", y="rms", log_y=True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from normlab.report.colours import MUTED, THEORY, pick, scheme_colours

Trace: TypeAlias = dict[str, Any]  # what plotly.js draws; its grammar is not ours to type
Figure: TypeAlias = dict[str, Any]
Numbers: TypeAlias = Sequence[float | None]

COLUMNS = 3
GAP = 0.06


# -- marks ------------------------------------------------------------------------------------------------------------
def line(xs: Sequence[object], ys: Sequence[object], name: str, colour: int | str = 0, **style: object) -> Trace:
    """A line; `dash`, `width`, `mode` and `opacity` are styles. A number is a place in the palette."""
    drawn = {"color": pick(colour), "width": style.pop("width", 2), "dash": style.pop("dash", "solid")}
    return {"type": "scatter", "mode": "lines", "x": list(xs), "y": list(ys), "name": name, "line": drawn, **style}


def theory(xs: Sequence[object], ys: Sequence[object], name: str, colour: int | str = THEORY, **style: object) -> Trace:
    """What is predicted: thin and dotted, grey unless it belongs to one line."""
    return line(xs, ys, name, colour, **{"dash": "dot", "width": 1.2, **style})


def band(xs: Sequence[object], low: Sequence[object], high: Sequence[object], colour: int | str = 0) -> Trace:
    """The area between two lines, behind what is drawn on it."""
    return {
        "type": "scatter", "mode": "lines", "x": [*xs, *reversed(xs)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": pick(colour), "opacity": 0.18, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def bars(xs: Sequence[object], ys: Sequence[object], name: str, colour: int | str = 0) -> Trace:
    return {"type": "bar", "x": list(xs), "y": list(ys), "name": name, "marker": {"color": pick(colour)}}


def matrix(values: Sequence[Numbers], name: str = "", **style: object) -> Trace:
    """A heat map, one colour scale in the whole library."""
    return {"type": "heatmap", "z": [list(row) for row in values], "colorscale": "Viridis", "name": name, **style}


# -- figures ----------------------------------------------------------------------------------------------------------
def figure(
    traces: Sequence[Trace], *, x: str, y: str, log_x: bool = False, log_y: bool = False, legend: bool = True
) -> Figure:
    """Traces with their axes; the legend stands below."""
    layout = {"xaxis": axis(x, log=log_x), "yaxis": axis(y, log=log_y), "hovermode": "closest", "showlegend": legend}
    return {"data": list(traces), "layout": {**layout, "legend": {"orientation": "h", "y": -0.22}}}


def axis(title: str, *, log: bool = False) -> dict[str, object]:
    kind: dict[str, object] = {"type": "log", "exponentformat": "power"} if log else {"type": "linear"}
    return {"title": {"text": title}, **kind}


def ticks(values: Sequence[float]) -> dict[str, object]:
    """An axis that names these numbers and no others: lengths, depths and learning rates that were really run."""
    return {"tickvals": list(values), "ticktext": [f"{value:g}" for value in values]}


def intervals(
    points: Mapping[str, tuple[float | None, float | None, float | None]], *, x: str, zero: bool = True
) -> tuple[Figure, int]:
    """(figure, height): a scheme a line, its mean as a dot and its interval as a bar; `points` are mean, low, high.

    A mean without an interval (one seed) is an open circle.
    """
    names = [name for name, (mean, _, _) in points.items() if mean is not None]
    colours = scheme_colours(points)
    traces: list[Trace] = []
    for name in reversed(names):  # plotly fills from below
        mean, low, high = points[name]
        known = low is not None and high is not None and mean is not None
        marker = {"color": colours[name], "size": 10, "symbol": "circle" if known else "circle-open"}
        trace: Trace = {"type": "scatter", "mode": "markers", "x": [mean], "y": [name], "name": name, "marker": marker}
        if mean is not None and low is not None and high is not None:
            reach = {"array": [high - mean], "arrayminus": [mean - low], "symmetric": False, "thickness": 2}
            trace["error_x"] = {"type": "data", "color": colours[name], **reach}
        traces.append(trace)
    drawn = figure(traces, x=x, y="", legend=False)
    drawn["layout"]["yaxis"] = {"type": "category", "automargin": True}
    if zero:
        drawn["layout"]["shapes"] = [vertical(0.0, dash="solid")]
    return drawn, 90 + 28 * len(names)


def vertical(at: float, *, dash: str = "dash") -> dict[str, object]:
    """A line across the picture, at one x: the training length, no difference."""
    style = {"dash": dash, "width": 1, "color": MUTED}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": style}


# -- small multiples --------------------------------------------------------------------------------------------------
def small_multiples(
    panels: Mapping[str, Sequence[Trace]],
    *,
    x: str,
    y: str,
    log_y: bool = False,
    columns: int = COLUMNS,
    axes: Mapping[str, object] | None = None,
    hover: str = "x unified",
) -> tuple[Figure, int]:
    """(figure, height in pixels). `panels` maps a title to plotly traces; all panels share both axes.

    `hover`: "x unified" reads all lines of a panel at one place, "closest" one mark.
    """
    columns = min(columns, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    data: list[Trace] = []
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


def heatmaps(panels: Mapping[str, Sequence[Numbers]], *, x: str, y: str) -> tuple[Figure, int]:
    """Matrices with one colour scale, rows from the top."""
    traces = {
        title: [{"type": "heatmap", "z": [list(row) for row in values], "coloraxis": "coloraxis", "name": title}]
        for title, values in panels.items()
    }
    drawn, height = small_multiples(traces, x=x, y=y, axes={"autorange": "reversed"}, hover="closest")
    drawn["layout"]["coloraxis"] = {"colorscale": "Viridis", "cmin": 0, "colorbar": {"thickness": 12}}
    return drawn, height + 60


def _span(index: int, count: int, gap: float = GAP) -> tuple[float, float]:
    size = (1 - gap * (count - 1)) / count
    return index * (size + gap), index * (size + gap) + size
