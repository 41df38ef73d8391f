"""Overviews of many schemes: a row each, dots in columns that have an axis of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normlab.report.colours import MUTED, scheme_colours
from normlab.report.figures import Figure, Trace, log_ticks

ROW = 21  # pixels
HEAD = 110
COLUMN, LETTER = 60, 6.7  # pixels on a phone


@dataclass(frozen=True)
class DotColumn:
    """One quantity: its title, a value a scheme, and where no effect lies."""

    title: str
    values: Mapping[str, float | None]
    neutral: float | None = 1.0


def dot_columns(names: Sequence[str], columns: Sequence[DotColumn]) -> tuple[Figure, int]:
    """(figure, height): logarithmic dots, the first name at the top. A value that is no number has no dot."""
    colours = scheme_colours(names)
    data: list[Trace] = []
    layout: dict[str, object] = {
        "showlegend": False, "hovermode": "closest", "margin": {"t": 60, "l": 10},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": list(reversed(names)),
                  "automargin": True, "fixedrange": True, "dtick": 1, "range": [-0.6, len(names) - 0.4]},
    }  # fmt: skip
    notes: list[dict[str, object]] = []
    shapes: list[dict[str, object]] = []
    gap = 0.05
    width = (1 - gap * (len(columns) - 1)) / len(columns)
    for number, column in enumerate(columns):
        tag = "" if number == 0 else str(number + 1)
        shown = [name for name in names if _positive(column.values.get(name))]
        xs = [column.values[name] for name in shown]
        # The rim keeps dark colours visible on dark paper.
        marker = {"size": 9, "color": [colours[name] for name in shown], "line": {"width": 0.8, "color": MUTED}}
        data.append({
            "type": "scatter", "mode": "markers", "x": xs, "y": shown, "xaxis": f"x{tag}", "yaxis": "y", "marker": marker,
            "hovertemplate": f"%{{y}}: %{{x:.3g}}<extra>{column.title}</extra>", "name": column.title,
        })  # fmt: skip
        left = number * (width + gap)
        layout[f"xaxis{tag}"] = {
            "domain": [left, left + width], "type": "log", "anchor": "y", "side": "top", "fixedrange": True,
            "tickangle": 0, **_few([*xs, column.neutral], column.neutral),
        }  # fmt: skip
        notes.append({"text": column.title, "x": left + width / 2, "y": 1, "yshift": 32, "xref": "paper", "yref": "paper",
                      "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 12}})  # fmt: skip
        if column.neutral is not None:
            shapes.append({"type": "line", "x0": column.neutral, "x1": column.neutral, "y0": 0, "y1": 1, "yref": "paper",
                           "xref": f"x{tag}", "line": {"color": MUTED, "width": 1, "dash": "dot"}})  # fmt: skip
    return {"data": data, "layout": {**layout, "annotations": notes, "shapes": shapes}}, HEAD + ROW * len(names)


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _few(values: Sequence[float | None], neutral: float | None) -> dict[str, object]:
    """On a phone a column has room for two numbers, if they are far enough apart: where no effect lies, and another."""
    found = log_ticks(values)
    known = [value for value in values if value is not None and _positive(value)]
    places, texts = found.get("tickvals"), found.get("ticktext")
    if not known or not isinstance(places, list) or not isinstance(texts, list):
        return found
    low, high = min(known), max(known)
    inner = [at for at, place in enumerate(places) if 2 * low <= place <= high / 2 or place == neutral]
    inner = inner or list(range(len(places)))
    decade = COLUMN / max(0.5, 1.1 * math.log10(high / low))  # pixels
    pairs = [(one, two) for one in inner for two in inner if one < two]
    fit = [
        (one, two) for one, two in pairs
        if decade * math.log10(places[two] / places[one]) > LETTER * (len(texts[one]) + len(texts[two])) / 2 + LETTER
    ]  # fmt: skip
    # Where no effect lies first, then as far apart as they go.
    kept = max(fit, key=lambda pair: (neutral in (places[pair[0]], places[pair[1]]), places[pair[1]] / places[pair[0]]),
               default=(inner[len(inner) // 2],))  # fmt: skip
    return {"tickvals": [places[at] for at in kept], "ticktext": [texts[at] for at in kept]}
