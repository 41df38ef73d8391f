"""One vocabulary of pictures, as dicts of plotly figures: lines, theory beside them, bands, bars, intervals, matrices.

figure([line(xs, ys, "pre_norm", scheme_colour("pre_norm")), theory(xs, law, "law")], x="branch", y="rms", log_y=True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from normlab.report.colours import FARES, MUTED, THEORY, pick, scheme_colours

Trace: TypeAlias = dict[str, Any]  # what plotly.js draws; its grammar is not ours to type
Figure: TypeAlias = dict[str, Any]
Style: TypeAlias = Mapping[str, object]
Numbers: TypeAlias = Sequence[float | None]

COLUMNS = 3
GAP = 0.06
ROW, ROW_GAP = 150, 62  # pixels of a row of small multiples, and between two


_LEVELS = tuple(FARES)
_SIGNS = {"fine": "", "note": "i", "warn": "!", "bad": "✕"}
_NAMED = {"fine": "nothing to say", "note": "note", "warn": "warning", "bad": "fault"}


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


def bars(
    xs: Sequence[object], ys: Sequence[object], name: str, colour: int | str = 0, *, reach: Numbers | None = None
) -> Trace:
    """`reach` is how far an error bar goes to each side."""
    drawn: Trace = {"type": "bar", "x": list(xs), "y": list(ys), "name": name, "marker": {"color": pick(colour)}}
    if reach is None:
        return drawn
    return {**drawn, "error_y": {"type": "data", "array": list(reach), "thickness": 1.2, "width": 2, "color": MUTED}}


def matrix(values: Sequence[Numbers], name: str = "", **style: object) -> Trace:
    """A heat map, one colour scale in the whole library."""
    return {"type": "heatmap", "z": [list(row) for row in values], "colorscale": "Viridis", "name": name, **style}


# -- figures ----------------------------------------------------------------------------------------------------------
def figure(
    traces: Sequence[Trace],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    across: Style | None = None,
    down: Style | None = None,
    layout: Style | None = None,
) -> Figure:
    """Traces with their axes, which `across` and `down` say more of; the legend stands below."""
    xs = log_ticks(_numbers(traces, "x")) if log_x else {}
    ys = log_ticks(_numbers(traces, "y")) if log_y else {}
    axes = {
        "xaxis": {**axis(x, log=log_x), **xs, **(across or {})},
        "yaxis": {**axis(y, log=log_y), **ys, **(down or {})},
    }
    legend = {"showlegend": True, "legend": {"orientation": "h", "y": -0.22}}
    return {"data": list(traces), "layout": {**axes, "hovermode": "closest", **legend, **(layout or {})}}


def heights(traces: Sequence[Trace]) -> list[float | None]:
    """Every y that is drawn, bands left out."""
    return [value for trace in traces if trace.get("fill") is None for value in trace["y"]]


def _numbers(traces: Sequence[Trace], key: str) -> list[float | None]:
    return [
        value for trace in traces for value in trace.get(key, ()) if value is None or isinstance(value, (int, float))
    ]


def axis(title: str, *, log: bool = False) -> dict[str, object]:
    kind: dict[str, object] = {"type": "log", "exponentformat": "power"} if log else {"type": "linear"}
    return {"title": {"text": title, "standoff": 8}, **kind}


def ticks(values: Sequence[float]) -> dict[str, object]:
    """An axis that names these numbers and no others: lengths, depths and learning rates that were really run."""
    return {"tickvals": list(values), "ticktext": [_said(value) for value in values]}


def _said(value: float) -> str:
    """Numbers as people say them; far from 1, a power of ten."""
    power = math.log10(value) if value > 0 else 0.0
    return f"10<sup>{power:.0f}</sup>" if power == round(power) and not -4 <= power <= 4 else f"{value:g}"


def log_ticks(values: Sequence[float | None]) -> dict[str, object]:
    """A logarithmic axis with numbers that people say: 1, 2, 5 of each decade, or the decades alone where there are many."""
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    if not known:
        return {}
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    close = max(known) < 4 * min(known)  # less than a decade: 1, 2, 5 may leave a single number
    steps = tuple(range(1, 10)) if close else (1, 2, 5) if max(known) <= 100 * min(known) else (1,)
    every = max(1, -(-(high - low) // 8))
    return ticks([float(f"{m}e{k}") for k in range(low, high + 1, every) for m in steps])


def marked(places: Mapping[int, str], *, name: str = "") -> list[dict[str, object]]:
    """Columns of a picture that something is said of: place -> "warn" or "bad"; neighbours are joined.

    The legend calls them what they are, or `name`.
    """
    runs: list[tuple[int, int, str]] = []
    for place, how in sorted(places.items()):
        if runs and runs[-1][1] == place - 1 and runs[-1][2] == how:
            runs[-1] = (runs[-1][0], place, how)
        else:
            runs.append((place, place, how))
    drawn: list[dict[str, object]] = []
    for first, last, how in runs:
        new = how not in {each[2] for each in runs[: len(drawn)]}
        legend = {"showlegend": new, "name": name or f"flagged: {_NAMED[how]}"}
        span = {"x0": first - 0.5, "x1": last + 0.5, "y0": 0, "y1": 1, "yref": "paper"}
        style = {"fillcolor": FARES[how], "opacity": 0.28, "line": {"width": 0}, "layer": "below"}
        drawn.append({"type": "rect", **span, **style, **legend})
    return drawn


def status(
    rows: Mapping[str, Sequence[str]], columns: Mapping[int, str], *, said: Mapping[str, Sequence[str]], x: str
) -> Figure:
    """A strip a row, a cell a place, each coloured by how it fares (a key of `FARES`); `said` is shown on hovering.

    `columns` names some of the places.
    """
    names = list(rows)
    values = [[_LEVELS.index(how) for how in rows[name]] for name in names]
    steps = [(i + side) / len(_LEVELS) for i in range(len(_LEVELS)) for side in (0, 1)]
    scale = [[at, FARES[_LEVELS[i // 2]]] for i, at in enumerate(steps)]
    cells: Trace = {
        "type": "heatmap", "z": values, "x": list(range(len(rows[names[0]]))), "y": names, "colorscale": scale,
        "zmin": -0.5, "zmax": len(_LEVELS) - 0.5, "showscale": False, "xgap": 2, "ygap": 3,
        "hovertemplate": "%{customdata}<extra></extra>", "customdata": [list(said[name]) for name in names],
        "text": [[_SIGNS[how] for how in rows[name]] for name in names], "texttemplate": "%{text}",
        "textfont": {"color": "#1b1f24"},
    }  # fmt: skip
    seen = [how for how in _LEVELS if any(how in row for row in rows.values())]
    legend: list[Trace] = [
        {"type": "scatter", "mode": "markers", "x": [None], "y": [names[0]], "name": _NAMED[how],
         "marker": {"symbol": "square", "size": 11, "color": FARES[how]}}
        for how in seen
    ]  # fmt: skip
    still = {"fixedrange": True, "showgrid": False, "zeroline": False}
    named = {"tickvals": list(columns), "ticktext": list(columns.values()), "tickangle": 0}
    across = {"title": {"text": x}, **named, **still}
    down = {"type": "category", "autorange": "reversed", "automargin": True, **still}
    above = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
    layout = {"xaxis": across, "yaxis": down, "hovermode": "closest", "showlegend": True, "legend": above}
    return {"data": [cells, *legend], "layout": {**layout, "margin": {"t": 40}}}


def every_so_many(count: int, *, most: int = 12) -> list[int]:
    """Which of so many columns get a tick, by steps that people count in; the first and the last always."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if count <= most * step)
    found = list(range(0, count, step))
    if not found or found[-1] == count - 1:
        return found
    near = count - 1 - found[-1] <= step // 2  # two numbers that close would touch
    return [*(found[:-1] if near and len(found) > 1 else found), count - 1]


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
            trace |= {"error_x": {"type": "data", "color": colours[name], **reach}}
        traces.append(trace)
    shapes = [vertical(0.0, dash="solid")] if zero else []
    down = {"type": "category", "automargin": True}
    layout = {"showlegend": False, "shapes": shapes}
    return figure(traces, x=x, y="", down=down, layout=layout), 90 + 28 * len(names)


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
    across: Style | None = None,
    down: Style | None = None,
    layout: Style | None = None,
) -> tuple[Figure, int]:
    """(figure, height in pixels). `panels` maps a title to plotly traces; all panels share both axes.

    Hovering reads all lines of a panel at one place; a layout with `hovermode` "closest" reads one mark.
    """
    columns = min(columns, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    inner = rows * ROW + (rows - 1) * ROW_GAP
    data: list[Trace] = []
    placed: dict[str, object] = {
        "meta": {"panels": len(panels), "height": 190, "gap": 80, "x": x, "y": y}
    }  # narrow pages
    ticks_y = log_ticks([v for traces in panels.values() for v in _numbers(traces, "y")]) if log_y else {}
    titles: list[Style] = []
    named: set[str] = set()
    for index, (title, traces) in enumerate(panels.items()):
        row, column = divmod(index, columns)
        left, right = _span(column, columns)
        top = 1 - row * (ROW + ROW_GAP) / inner
        bottom = max(0.0, top - ROW / inner)
        tag = "" if index == 0 else str(index + 1)
        placed[f"xaxis{tag}"] = {
            "domain": [left, right],
            "anchor": f"y{tag}",
            **({"matches": "x"} if index else {}),
            **(across or {}),
            **({"title": {"text": x, "standoff": 4}} if index + columns >= len(panels) else {}),
        }
        placed[f"yaxis{tag}"] = {
            "domain": [bottom, top],
            "anchor": f"x{tag}",
            **({"matches": "y"} if index else {}),
            **({"type": "log", **ticks_y} if log_y else {}),
            **(down or {}),
            **({"title": {"text": y, "standoff": 4}} if column == 0 else {}),
        }
        titles.append(
            {"text": title, "x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper", "showarrow": False,
             "xanchor": "center", "yanchor": "bottom", "font": {"size": 13}}
        )  # fmt: skip
        for trace in traces:
            name = str(trace.get("name", ""))
            shown = trace.get("showlegend", True) and name not in named
            shared = {"xaxis": f"x{tag}", "yaxis": f"y{tag}", "legendgroup": name, "showlegend": shown}
            named |= {name} if shown else set()
            data.append({**trace, **shared})
    legend = {"orientation": "h", "y": -55 / inner, "yanchor": "top"}
    around = {"legend": legend, "margin": {"t": 30}, "hovermode": "x unified"}
    return {"data": data, "layout": {"annotations": titles, **around, **placed, **(layout or {})}}, inner + 140


def heatmaps(panels: Mapping[str, Sequence[Numbers]], *, x: str, y: str) -> tuple[Figure, int]:
    """Matrices with one colour scale, rows from the top."""
    traces = {
        title: [{"type": "heatmap", "z": [list(row) for row in values], "coloraxis": "coloraxis", "name": title}]
        for title, values in panels.items()
    }
    colours = {"colorscale": "Viridis", "cmin": 0, "colorbar": {"thickness": 12}}
    layout = {"hovermode": "closest", "coloraxis": colours, "showlegend": False}
    return small_multiples(traces, x=x, y=y, down={"autorange": "reversed"}, layout=layout)


def _span(index: int, count: int, gap: float = GAP) -> tuple[float, float]:
    size = (1 - gap * (count - 1)) / count
    return index * (size + gap), index * (size + gap) + size
