"""A comparison in a terminal."""

from __future__ import annotations

from pathlib import Path

from normlab.experiments.compare.page import STARTS_CAPTION, start_rows, summary_rows
from normlab.experiments.compare.result import Comparison
from normlab.report import console, table

FEW = 8  # schemes; of more, the page and tables.md have the sentences
PAGE_ONLY = ("params (M)", "MFLOP a token", "95 % interval", "interval, control")


def show(result: Comparison, page: Path) -> None:
    """The answer, one table and where the report is."""
    screen = console()
    for note in result.notes:
        screen.print(note, style="yellow", markup=False)
    for setting in result.settings:
        screen.print()
        for sentence in setting.answer:
            screen.print(sentence, markup=False)
        if setting.starts and setting.setting.recipe == "authors":
            screen.print(table(start_rows(setting), title=STARTS_CAPTION))
        rows = summary_rows(setting)
        screen.print(table(rows, columns=[name for name in rows[0] if name not in PAGE_ONLY]))
        if len(rows) <= FEW:
            for sentence in setting.statements.values():
                screen.print(f"- {sentence}", markup=False)
    screen.print(f"\npage: {page}", markup=False)
