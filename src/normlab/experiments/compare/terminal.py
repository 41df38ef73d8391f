"""A comparison in a terminal."""

from __future__ import annotations

from normlab.experiments.compare.page import summary_rows
from normlab.experiments.compare.result import Comparison
from normlab.report import console, table

FEW = 8  # schemes; of more, the page and tables.md have the sentences
PAGE_ONLY = ("params (M)", "MFLOP a token")


def show(result: Comparison) -> None:
    """The answer, one table and where the report is."""
    screen = console()
    for note in result.notes:
        screen.print(note, style="yellow", markup=False)
    for setting in result.settings:
        screen.print()
        for sentence in setting.answer:
            screen.print(sentence, markup=False)
        rows = summary_rows(setting)
        screen.print(table(rows, columns=[name for name in rows[0] if name not in PAGE_ONLY]))
        if len(rows) <= FEW:
            for sentence in setting.statements.values():
                screen.print(f"- {sentence}", markup=False)
        for claim in setting.claims:
            mean = "" if claim.mean is None else f" ({claim.mean:+.3g}, n = {claim.n})"
            screen.print(f"{claim.verdict:>9}: {claim.claim}{mean}", markup=False)
