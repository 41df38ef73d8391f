"""Small pictures as SVG text: lines in the page's own ink, no network, no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 250, 170, 50, 26, 30
STYLE = "font:12px system-ui,sans-serif;fill:currentColor"


@dataclass(frozen=True)
class Line:
    """Values over depth; None leaves a gap. A dashed line is a prediction."""

    values: Sequence[float | None]
    colour: str
    name: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One small chart."""

    title: str
    lines: Sequence[Line]
    x: str = "layer"
    layers: int = 1


def picture(panels: Sequence[Panel], *, label: str) -> str:
    """Panels side by side; `label` is what a screen reader says."""
    drawn = "".join(
        f'<g transform="translate({index * WIDTH},0)">{_panel(panel)}</g>' for index, panel in enumerate(panels)
    )
    size = f'viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}" width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    return f'<svg class="scheme-picture" role="img" aria-label="{escape(label, quote=True)}" {size}>{drawn}</svg>'


def _panel(panel: Panel) -> str:
    known = [v for line in panel.lines for v in line.values if v is not None and math.isfinite(v)]
    if not known:
        return _text(WIDTH / 2, HEIGHT / 2, "not defined for this scheme", "middle")
    low, high = min(0.0, *known), max(known)
    high = high if high > low else low + 1.0
    parts = [_text(LEFT, 15, panel.title, "start", bold=True)]
    bottom, right = HEIGHT - BOTTOM, WIDTH - 14
    for value in (low, (low + high) / 2, high):
        y = _scale(value, low, high, bottom, TOP)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".15"/>')
        parts.append(_text(LEFT - 5, y + 4, f"{value:.2g}", "end"))
    for layer in sorted({1, panel.layers}):
        x = _scale(layer, 1, max(panel.layers, 2), LEFT, right)
        parts.append(
            _text(
                x, HEIGHT - 12, f"{panel.x} {layer}" if layer == 1 else str(layer), "middle" if layer > 1 else "start"
            )
        )
    return "".join([*parts, *(_path(line, low, high, right, bottom) for line in panel.lines)])


def _path(line: Line, low: float, high: float, right: float, bottom: float) -> str:
    points, commands, pen = list(enumerate(line.values)), [], "M"
    last = max(len(points) - 1, 1)
    for index, value in points:
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = _scale(index, 0, last, LEFT, right), _scale(value, low, high, bottom, TOP)
        commands.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    dash = ' stroke-dasharray="4 3"' if line.dashed else ""
    title = f"<title>{escape(line.name)}</title>" if line.name else ""
    return f'<path d="{" ".join(commands)}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}>{title}</path>'


def _text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    weight = ";font-weight:600" if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{STYLE}{weight}">{escape(words)}</text>'


def _scale(value: float, low: float, high: float, start: float, end: float) -> float:
    return start + (value - low) / (high - low) * (end - start)
