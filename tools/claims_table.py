"""Writes the table of docs/claims/README.md and the guide docs/choose.md from the ledger and its evidence.

python tools/claims_table.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tools.site

from tools.site import choose  # noqa: E402

from normlab.experiments.claims.book import Book, Entry, claims  # noqa: E402
from normlab.experiments.claims.page import TITLES  # noqa: E402

DOCUMENT, GUIDE = ROOT / "docs" / "claims" / "README.md", ROOT / "docs" / "choose.md"
BEGIN, END = "<!-- verdicts: `python tools/claims_table.py` writes this -->", "<!-- end of the verdicts -->"


def number(entry: Entry) -> str:
    lead = entry.decision.leading
    if lead is None:
        return "-"
    return f"{lead.label}: {lead.number}"


def row(entry: Entry) -> str:
    decision, claim = entry.decision, entry.claim
    lacking = {"undecided": decision.would_change, "not measured": decision.sentence}.get(decision.verdict, "")
    limit = f"Limit: {claim.limit}." if claim.limit else ""
    corrected = f"Corrected {claim.corrected.date}: [below](#corrections)." if claim.corrected else ""
    more = " ".join(part for part in (lacking, limit, corrected) if part)
    cells = (claim.id, claim.statement, decision.verdict, number(entry), more)
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def text(book: Book) -> str:
    parts = [BEGIN, book.answer]
    for seed in sorted({entry.claim.seed for entry in book.entries}):
        part = book.of_seed(seed)
        parts.append(f"### {seed}: {TITLES[seed]}\n\n{part.answer}")
        head = "| claim | statement | verdict | the least certain number | what is lacking; limits |\n|---|---|---|---|---|"
        parts.append("\n".join([head, *(row(entry) for entry in part.entries)]))
    return "\n\n".join([*parts, corrections(book), END])


def corrections(book: Book) -> str:
    """What was printed, why it was wrong, what stands, what would decide it: for each claim that was corrected."""
    parts = ["### Corrections"]
    for entry in book.entries:
        claim = entry.claim
        if claim.corrected is not None:
            lines = [f"- *{heading}.* {words}" for heading, words in claim.corrected.lines.items()]
            parts.append("\n".join([f"**{claim.id}**: {claim.statement}\n", *lines]))
    return "\n\n".join(parts)


def written(document: str, book: Book) -> str:
    before, _, rest = document.partition(BEGIN)
    return before + text(book) + rest.partition(END)[2]


def main() -> int:
    was = DOCUMENT.read_text(encoding="utf-8")
    now = written(was, claims(nulls=False))
    if "--check" in sys.argv:
        return int(was != now)
    DOCUMENT.write_text(now, encoding="utf-8")
    GUIDE.write_text(choose.in_the_repository(choose.page()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
