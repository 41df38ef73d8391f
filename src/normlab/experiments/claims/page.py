"""The ledger as pages: one a seed, with a picture for each claim, and an index in front."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

from normlab.experiments.claims.book import Book, Entry
from normlab.experiments.claims.criteria import Reading
from normlab.experiments.claims.decide import wanted
from normlab.report import Page
from normlab.report.colours import MUTED
from normlab.report.figures import Figure, Style, Trace
from normlab.report.terminal import show
from normlab.results import page_of

STYLE = {"confirmed": "good", "refuted": "bad", "misprinted": "warn", "undecided": "warn", "not measured": "note"}
COLOUR = {"confirmed": "#2e8b57", "refuted": "#c0392b", "misprinted": "#b8860b", "undecided": "#7f7f7f"}
MOST = 6
"""Readings that one picture shows."""
TITLES = {
    "000": "Attention Residuals, and the streams before it",
    "001": "Pre-Norm against Post-Norm",
    "002": "Norms behind attention, and longer inputs",
    "003": "How norms move tokens on the sphere",
    "004": "Where the norm goes",
}


def write_pages(book: Book, folder: Path) -> Path:
    """seed-NNN.html for each seed, and index.html, whose path is returned."""
    seeds = sorted({entry.claim.seed for entry in book.entries})
    for seed in seeds:
        seed_page(book.of_seed(seed), seed).write(folder / f"seed-{seed}.html")
    return index(book, seeds).write(folder / "index.html")


@page_of.register
def whole(book: Book) -> Page:
    """Everything on one page: what `to_html` writes."""
    page = Page("The claims of the field", subtitle=book.answer)
    for entry in book.entries:
        _claim(page, entry)
    return page


def index(book: Book, seeds: Sequence[str]) -> Page:
    page = Page("The claims of the field", subtitle=book.answer)
    page.text(
        "Each claim has a criterion that was fixed before the run, evidence that a command makes again, and a verdict "
        "that is computed from it. Holm's correction is taken over the claims of a page.",
        style="lead",
    )
    for seed in seeds:
        part = book.of_seed(seed)
        name = html.escape(_title(seed))
        page.html(f'<h2><a href="seed-{html.escape(seed)}.html">{name}</a></h2><p>{html.escape(part.answer)}</p>')
        page.table(_rows(part), name=f"claims-{seed}")
    return page


def seed_page(book: Book, seed: str) -> Page:
    page = Page(_title(seed), subtitle=book.answer)
    page.table(
        _rows(book), name=f"claims-{seed}", caption="The number that decides each claim, and where it was wanted."
    )
    for entry in book.entries:
        _claim(page, entry)
    return page


def _title(seed: str) -> str:
    return TITLES.get(seed, f"Claims {seed}")


def _rows(book: Book) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for entry in book.entries:
        lead = entry.decision.leading
        rows.append(
            {
                "claim": entry.claim.id,
                "statement": entry.claim.statement,
                "verdict": entry.decision.verdict,
                "number": None if lead is None else lead.estimate,
                "range": "" if lead is None else wanted(lead),
            }
        )
    return rows


def _claim(page: Page, entry: Entry) -> None:
    claim, decision = entry.claim, entry.decision
    page.heading(f"{claim.id}: {claim.statement}", anchor=claim.id)
    page.text(f"{decision.verdict}: {decision.sentence}", style=STYLE[decision.verdict])
    if decision.finding is not None and decision.finding.readings:
        readings = (*decision.finding.readings, *decision.finding.beside)[:MOST]
        drawn, height = picture(readings, COLOUR.get(decision.verdict, MUTED))
        page.figure(drawn, height=height, label=f"{claim.id}: {decision.sentence}")
    page.text(f"Source: {claim.source}. Criterion: {claim.criterion.text()}.", style="note")
    page.text(f"What would change it: {decision.would_change}", style="note")
    for line in (claim.note, *(check.sentence for check in entry.nulls), *(f"Beware: {w}." for w in entry.warnings)):
        if line:
            page.text(line, style="note")
    page.code("\n".join([claim.command, *([claim.look] if claim.look else [])]))
    if decision.evidence is not None:
        found = decision.evidence
        settings = ", ".join(f"{key} {value}" for key, value in found.settings.items())
        made = f"commit {found.commit[:10]}, normlab {found.version}, {len(found.seeds)} seeds, {found.seconds:.0f} s"
        page.text(f"Evidence {found.name}: {made}. {settings}.", style="note")


# -- the picture ----------------------------------------------------------------------------------------------------------
def picture(readings: Sequence[Reading], colour: str) -> tuple[Figure, int]:
    """(figure, height): a row for each reading with its own axis; the claimed range is shaded."""
    count = len(readings)
    traces: list[Trace] = []
    axes: dict[str, object] = {}
    shapes: list[Style] = []
    texts: list[Style] = []
    for row, reading in enumerate(readings):
        tag = "" if row == 0 else str(row + 1)
        top, bottom = 1 - row / count, 1 - (row + 0.55) / count
        left, right = _span(reading)
        axes[f"xaxis{tag}"] = {"anchor": f"y{tag}", "range": [left, right], "zeroline": False}
        domain = [max(bottom, 0), top - 0.3 / count]
        axes[f"yaxis{tag}"] = {"domain": domain, "anchor": f"x{tag}", "visible": False, "range": [-1, 1]}
        low, high = max(reading.wanted[0], left), min(reading.wanted[1], right)
        if low <= high:
            shapes.append(
                {"type": "rect", "xref": f"x{tag}", "yref": f"y{tag}", "x0": low, "x1": high, "y0": -1, "y1": 1,
                 "fillcolor": "#2e8b57", "opacity": 0.15, "line": {"width": 0}}
            )  # fmt: skip
        text = html.escape(f"{reading.label}: {show(reading.estimate)}, {wanted(reading)}")
        texts.append(
            {"text": text, "xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "top",
             "showarrow": False, "font": {"size": 12}}
        )  # fmt: skip
        traces.append(_mark(reading, colour, tag))
    around = {"showlegend": False, "margin": {"t": 24, "b": 24, "l": 20, "r": 20}}
    return {"data": traces, "layout": {**around, "shapes": shapes, "annotations": texts, **axes}}, 60 + 86 * count


def _mark(reading: Reading, colour: str, tag: str) -> Trace:
    value = None if math.isnan(reading.estimate) else reading.estimate
    mark: Trace = {
        "type": "scatter", "mode": "markers", "x": [value], "y": [0], "xaxis": f"x{tag}", "yaxis": f"y{tag}",
        "name": reading.label, "marker": {"color": colour, "size": 10},
    }  # fmt: skip
    if value is not None and reading.low is not None and reading.high is not None:
        reach = {
            "array": [reading.high - value],
            "arrayminus": [value - reading.low],
            "symmetric": False,
            "thickness": 2,
        }
        mark |= {"error_x": {"type": "data", "color": colour, **reach}}
    return mark


def _span(reading: Reading) -> tuple[float, float]:
    """An axis that holds the measurement, its interval and the ends of the range, with some air."""
    points = [reading.estimate, reading.low, reading.high, *reading.wanted]
    known = [p for p in points if p is not None and math.isfinite(p)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    air = 0.25 * (high - low) or 0.5 * abs(high) or 1.0
    return low - air, high + air
