"""Several pictures beside each other that share a legend, each with axes of its own.

The page stacks them in one column where it is narrow: `meta` says how many there are and how high one is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normlab.report.figures import Figure, Numbers, Style, Trace, log_ticks

HEIGHT = 230  # pixels of one row
GAP_X, GAP_Y = 0.1, 90


@dataclass(frozen=True)
class Panel:
    """A title, its lines, and what is on the axes."""

    title: str
    traces: Sequence[Trace]
    x: str
    log_y: bool = True
    zero: bool = True  # a linear axis begins there


def panels(drawn: Sequence[Panel], *, columns: int = 2, layout: Style | None = None) -> tuple[Figure, int]:
    """(figure, height). A name that occurs in several panels stands in the legend once, and switches all of them.

    A panel of which nothing was measured is left out.
    """
    drawn = [
        panel for panel in drawn if any(v is not None for t in panel.traces for v in _numbers(t.get("y")))
    ] or drawn
    columns = min(columns, max(1, len(drawn)))
    rows = -(-len(drawn) // columns)
    inner = rows * HEIGHT + (rows - 1) * GAP_Y
    data: list[Trace] = []
    placed: dict[str, object] = {
        "hovermode": "closest", "legend": {"orientation": "h", "y": -60 / inner, "yanchor": "top"}, "margin": {"t": 40},
        "meta": {"panels": len(drawn), "height": HEIGHT, "gap": GAP_Y},
    }  # fmt: skip
    notes: list[dict[str, object]] = []
    named: set[str] = set()
    width = (1 - GAP_X * (columns - 1)) / columns
    for index, panel in enumerate(drawn):
        row, column = divmod(index, columns)
        tag = "" if index == 0 else str(index + 1)
        left = column * (width + GAP_X)
        top = 1 - row * (HEIGHT + GAP_Y) / inner
        bottom = max(0.0, top - HEIGHT / inner)
        ys = [value for trace in panel.traces for value in _numbers(trace.get("y"))]
        linear: Style = {"type": "linear", "rangemode": "tozero" if panel.zero else "normal"}
        scale = {"type": "log", **_log_range(ys)} if panel.log_y else linear
        placed[f"xaxis{tag}"] = {
            "domain": [left, left + width],
            "anchor": f"y{tag}",
            "title": {"text": panel.x, "standoff": 4},
        }
        placed[f"yaxis{tag}"] = {"domain": [bottom, top], "anchor": f"x{tag}", **scale}
        notes.append({"text": f"<b>{panel.title}</b>", "x": left, "y": top, "xref": "paper", "yref": "paper",
                      "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 13}})  # fmt: skip
        for trace in panel.traces:
            name = str(trace.get("name", ""))
            shown = trace.get("showlegend", True) and name not in named
            named |= {name} if shown else set()
            shared = {"legendgroup": trace.get("legendgroup", name), "showlegend": shown}
            data.append({**trace, "xaxis": f"x{tag}", "yaxis": f"y{tag}", **shared})
    return {"data": data, "layout": {**placed, "annotations": notes, **(layout or {})}}, inner + 170


def _log_range(values: Numbers) -> dict[str, object]:
    """Ticks, and for what hardly varies a range of a factor of three: noise must not look like growth."""
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    if not known or max(known) > 3 * min(known):
        return log_ticks(values)
    middle = (math.log10(min(known)) + math.log10(max(known))) / 2
    return {**log_ticks([10 ** (middle - 0.25), 10 ** (middle + 0.25)]), "range": [middle - 0.25, middle + 0.25]}


def _numbers(values: object) -> Numbers:
    return values if isinstance(values, list) else []
