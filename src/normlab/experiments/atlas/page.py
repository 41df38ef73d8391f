"""The atlas as one HTML page, and as a table in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from normlab.experiments.atlas.measure import Atlas, AtlasEntry
from normlab.report import Page, console, sparkline, table
from normlab.report.colours import scheme_colours
from normlab.report.figures import Figure, figure, line, matrix, theory
from normlab.results import page_of

Values = Sequence[float | None]


def rows(entries: Sequence[AtlasEntry]) -> list[dict[str, object]]:
    """The table: one line per scheme. Growth is taken from behind layer 1 to the last layer's last branch."""
    return [
        {
            "scheme": e.scheme,
            "growth": e.stream[-2] / e.stream[2],
            "law": _over(e.law[-2], e.law[2]),
            "last adds": e.contribution[-1] if e.contribution else None,
            "grad 1/L": _over(e.gradient_share[0], e.gradient_share[-1]),
            "parameters": e.residual_parameters,
            "step": e.step_ratio,
        }
        for e in entries
    ]


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


@page_of.register
def build(atlas: Atlas, *, command: str = "") -> Page:
    entries = atlas.entries
    page = Page("Schemes at initialisation", subtitle=atlas.request.shape)
    page.text(
        "Each scheme with its own initialisation (or the one asked for), the same shape and the same text, before any "
        "training: how what the "
        "branches read grows with depth, which layers get the gradient, how depth is mixed, and what a step costs.",
        style="lead",
    )
    page.heading("The table")
    page.table(
        rows(entries),
        name="atlas",
        caption="growth: rms that the last branch reads over the rms behind layer 1; law: the same if branches of the "
        "sizes that this initialisation gives them were independent. last adds: size of the last "
        "branch's contribution over what it read. grad 1/L: gradient norm of the first layer over the last's. parameters: "
        "of the residual path. step: time of a training step over the first scheme's, interleaved, median.",
    )
    page.heading("How the stream grows")
    drawn = _curves(entries, lambda e: e.stream, x="branch", y="rms of what the branch reads", law=True)
    page.figure(
        drawn,
        height=460,
        caption="Solid: measured. Dotted: the law of this initialisation, independent branches of the same sizes.",
    )
    page.heading("Who gets the gradient")
    drawn = _curves(entries, lambda e: e.gradient_share, x="layer", y="share of the gradient norm")
    page.figure(drawn, height=420, caption="A layer's gradient norm over the sum of all layers' norms.")
    page.heading("What each branch adds")
    page.figure(
        _curves(entries, lambda e: e.contribution, x="branch", y="|branch output| / |what it read|"), height=420
    )
    page.heading("How far each branch turns the stream")
    page.figure(_curves(entries, lambda e: e.influence, x="branch", y="1 - cos(h, next h)"), height=420)
    _mixing(page, entries)
    if command:
        page.heading("How it was measured")
        page.code(command)
    return page


def show(atlas: Atlas, page: Path) -> None:
    """To a person in a terminal."""
    lines = rows(atlas.entries)
    for row, entry in zip(lines, atlas.entries, strict=True):
        row["stream"] = sparkline(entry.stream[2 :: max(1, len(entry.stream) // 12)][:14], log=True)
    console().print(table(lines, title=f"At initialisation: {atlas.request.shape}"))
    console().print(f"page: {page}", markup=False)


def _mixing(page: Page, entries: Sequence[AtlasEntry]) -> None:
    mixed = [(e, e.mixing) for e in entries if e.mixing is not None and _uneven(e.mixing)]
    if not mixed:
        return
    page.heading("How depth is mixed")
    page.text("Schemes that start as a plain sum or mean of their branches have equal rows, and are not drawn.")
    page.text(
        "Row l: the weight of each source in what branch l reads, relative to the row's largest; last row: the head."
    )
    for entry, mixing in mixed:
        page.figure(_heat(mixing), height=360, caption=f"{entry.scheme}: {entry.equation}")


def _uneven(mixing: list[list[float]]) -> bool:
    return any(max(row[: i + 1]) - min(row[: i + 1]) > 1e-6 * max(row) for i, row in enumerate(mixing))


def _curves(
    entries: Sequence[AtlasEntry], of: Callable[[AtlasEntry], Values], *, x: str, y: str, law: bool = False
) -> Figure:
    colours = scheme_colours(entry.scheme for entry in entries)
    data = []
    for entry in entries:
        values, colour, group = of(entry), colours[entry.scheme], {"legendgroup": entry.scheme}
        xs = range(1, len(values) + 1)
        data.append(line(xs, values, entry.scheme, colour, mode="lines+markers", marker={"size": 4}, **group))
        if law and entry.law[0]:
            scale = entry.stream[0] / entry.law[0]
            shown = [None if v is None else v * scale for v in entry.law]
            data.append(theory(xs, shown, f"{entry.scheme}, law", colour, showlegend=False, **group))
    return figure(data, x=x, y=y, log_y=True)


def _heat(mixing: list[list[float]]) -> Figure:
    scaled = [
        [v / (max(map(abs, row)) or 1.0) if source <= read else None for source, v in enumerate(row)]
        for read, row in enumerate(mixing)
    ]
    drawn = figure([matrix(scaled, zmin=0, zmax=1, hoverongaps=False)], x="source", y="read", legend=False)
    drawn["layout"]["yaxis"]["autorange"] = "reversed"
    return drawn
