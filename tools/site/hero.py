"""The README's picture: how five schemes begin, measured on fresh networks.

python -m tools.site.hero        # writes docs/images/schemes.svg
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from normlab.experiments.atlas.measure import AtlasEntry, measure
from normlab.experiments.atlas.page import by_layer
from normlab.experiments.atlas.request import AtlasRequest
from normlab.files import write_text
from normlab.report.colours import scheme_colour

SCHEMES = ("pre_norm", "ln_scaling", "peri_norm", "post_norm", "sqrt_scaling")
OUT = Path(__file__).parents[2] / "docs" / "images" / "schemes.svg"
DEPTH = 12
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330, 250, 44, 112, 34, 34
INK = "#7d8590"  # readable on white and on black: an image does not know the page
FONT = "system-ui,-apple-system,Segoe UI,sans-serif"


def panels() -> list[tuple[str, Callable[[AtlasEntry], Sequence[float | None]]]]:
    return [
        ("size of what a branch reads (rms)", lambda e: by_layer(e.stream[:-1])),
        ("what a branch adds, over the stream", lambda e: by_layer(e.contribution)),
        ("a layer's share of the gradient", lambda e: e.gradient_share),
    ]


def draw(entries: Sequence[AtlasEntry]) -> str:
    parts = []
    for index, (title, values) in enumerate(panels()):
        lines = {entry.scheme: list(values(entry)) for entry in entries}
        parts.append(f'<g transform="translate({index * WIDTH},0)">{_panel(title, lines)}</g>')
    size = f'viewBox="0 0 {3 * WIDTH} {HEIGHT}" width="{3 * WIDTH}" height="{HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">{"".join(parts)}</svg>\n'


def _panel(title: str, lines: dict[str, list[float | None]]) -> str:
    known = [v for line in lines.values() for v in line if v is not None and math.isfinite(v)]
    high, right, bottom = max(known) * 1.05, WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [_text(LEFT, 18, title, INK, bold=True)]
    for value in (0.0, high / 2.1, high / 1.05):
        y = bottom - value / high * (bottom - TOP)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{INK}" opacity=".25"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:.2g}", INK, anchor="end"))
    parts += [_text(LEFT, HEIGHT - 12, "layer 1", INK), _text(right, HEIGHT - 12, str(DEPTH), INK, anchor="end")]
    ends = []
    for name, values in lines.items():
        points = [
            (LEFT + i / (len(values) - 1) * (right - LEFT), bottom - v / high * (bottom - TOP))
            for i, v in enumerate(values)
            if v is not None and math.isfinite(v)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{scheme_colour(name)}" stroke-width="2.2"/>')
        ends.append((points[-1][1], name))
    for y, name in spread(ends, low=TOP, high=bottom):
        parts.append(_text(right + 6, y + 4, name, scheme_colour(name)))
    return "".join(parts)


def spread(ends: list[tuple[float, str]], *, low: float, high: float, gap: float = 13.0) -> list[tuple[float, str]]:
    """Labels beside the ends of their lines, moved apart where they would lie on each other."""
    found: list[tuple[float, str]] = []
    for y, name in sorted(ends):
        found.append((max(y, found[-1][0] + gap if found else low), name))
    over = found[-1][0] - high
    if over > 0:
        ceiling = high
        for at in range(len(found) - 1, -1, -1):
            found[at] = (min(found[at][0], ceiling), found[at][1])
            ceiling = found[at][0] - gap
    return found


def _text(x: float, y: float, words: str, colour: str, *, anchor: str = "start", bold: bool = False) -> str:
    style = f'font-size="12" fill="{colour}"' + (' font-weight="600"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(words)}</text>'


def main() -> None:
    request = AtlasRequest(schemes=SCHEMES, depth=DEPTH, dim=64, init="unit", rounds=1)
    write_text(OUT, draw(measure(request, quiet=True).entries))


if __name__ == "__main__":
    main()
