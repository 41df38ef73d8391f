"""The ledger as pages: one a seed, with a picture for each claim, and an index in front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from normlab.experiments.claims.book import Book, Entry
from normlab.experiments.claims.criteria import Reading
from normlab.experiments.claims.decide import Verdict, wanted
from normlab.report import Page
from normlab.report.strips import Interval, counts, interval
from normlab.results import page_of

STYLE = {
    "confirmed": "good",
    "refuted": "bad",
    "misprinted": "warn",
    "undecided": "warn",
    "not measured": "note",
    "no verdict": "note",
}
COLOUR: dict[Verdict, str] = {
    "confirmed": "#3FA06F", "refuted": "#D9534A", "misprinted": "#D09A1E", "undecided": "#8FA3B5", "not measured": "#C4CCD4",
    "no verdict": "#B79CC8",
}  # fmt: skip
READ = (
    "Each claim has a criterion, evidence that a command makes again, and a verdict that is computed from it. Where a "
    "criterion was changed after numbers were seen the claim says so. Confirmed and refuted mean that the 95 % interval "
    "decides.",
    "Misprinted: the form that circulates fails, and the form that the source proves holds. Undecided: the interval lies on "
    "both sides, or the runs are too short. Not measured: nobody has, and the page says why.",
    "No verdict: the experiment does not carry the sentence. The claim shows what was printed until when, and what stands.",
    "Shaded: what the claim wants. Dot and bar: what was measured, with its interval over seeds. Holm's correction is taken "
    "over the claims of a page.",
)
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
    page = Page("The claims of the field")
    page.text(book.answer, style="lead")
    page.html(counts({"": book.counts}, COLOUR))
    page.details("How to read this", *READ)
    for entry in book.entries:
        _claim(page, entry)
    return page


def index(book: Book, seeds: Sequence[str]) -> Page:
    page = Page("The claims of the field", subtitle="what is said of norms and residuals, and what the numbers say")
    page.text(book.answer, style="lead")
    parts = {seed: book.of_seed(seed) for seed in seeds}
    page.html(counts({_title(seed): part.counts for seed, part in parts.items()}, COLOUR))
    page.details("How to read this", *READ)
    page.links({f"{_title(seed)}: every claim with its picture": f"seed-{seed}.html" for seed in seeds})
    for seed, part in parts.items():
        page.heading(_title(seed))
        page.table(_rows(part), name=f"claims-{seed}")
    return page


def seed_page(book: Book, seed: str) -> Page:
    page = Page(_title(seed), subtitle="what is claimed, and what the numbers say")
    page.text(book.answer, style="lead")
    page.html(counts({"": book.counts}, COLOUR))
    page.details("How to read this", *READ)
    for entry in book.entries:
        _claim(page, entry)
    page.heading("All of them")
    page.table(
        _rows(book), name=f"claims-{seed}", caption="The number that decides each claim, and where it was wanted."
    )
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
                "number": None if lead is None else lead.number,
                "range": "" if lead is None or entry.claim.withdrawn else wanted(lead),
            }
        )
    return rows


def _claim(page: Page, entry: Entry) -> None:
    claim, decision = entry.claim, entry.decision
    page.heading(f"{claim.id}: {claim.statement}", anchor=claim.id, short=claim.id)
    page.text(f"{decision.verdict}: {decision.sentence}", style=STYLE[decision.verdict])
    for heading, words in (claim.corrected.lines if claim.corrected else {}).items():
        page.text(f"{heading}: {words}")
    if decision.finding is not None and decision.finding.readings and not claim.withdrawn:
        readings = (*decision.finding.readings, *decision.finding.beside)[:MOST]
        page.html(picture(readings, COLOUR[decision.verdict]))
    page.text(f"Source: {claim.source}. Criterion: {claim.criterion.text()}.", style="note")
    if not claim.withdrawn:
        page.text(f"What would change it: {decision.would_change}", style="note")
    limit = f"Limit: {claim.limit}." if claim.limit else ""
    for line in (
        limit,
        claim.note,
        *(check.sentence for check in entry.nulls),
        *(f"Beware: {w}." for w in entry.warnings),
    ):
        if line:
            page.text(line, style="note")
    page.code("\n".join([claim.command, *([claim.look] if claim.look else [])]))
    if decision.evidence is not None:
        found = decision.evidence
        settings = ", ".join(f"{key} {value}" for key, value in found.settings.items())
        made = f"commit {found.commit[:10]}, normlab {found.version}, {len(found.seeds)} seeds, {found.seconds:.0f} s"
        page.text(f"Evidence {found.name}: {made}. {settings}.", style="note")


def picture(readings: Sequence[Reading], colour: str) -> str:
    """A strip for each reading, with an axis of its own; the claimed range is shaded."""
    strips = []
    for reading in readings:
        value = None if math.isnan(reading.estimate) else reading.estimate
        label = f"{reading.label}: {reading.number}, {wanted(reading)}"
        strips.append(interval(Interval(label, value, reading.low, reading.high, reading.wanted), colour=colour))
    return "".join(strips)
