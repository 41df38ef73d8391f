"""A comparison in a terminal."""

from __future__ import annotations

from rich.console import Console

from normlab.experiments.compare.page import STARTS_CAPTION, start_rows, summary_rows
from normlab.experiments.compare.result import Comparison, SettingResult
from normlab.experiments.compare.sentences import own_starts
from normlab.report import console, table

FEW = 8  # schemes; of more, the page and tables.md have the sentences
PAGE_ONLY = ("params (M)", "MFLOP a token", "95 % interval", "interval, control")


def show(result: Comparison) -> None:
    """The answer and one table."""
    screen = console()
    for note in result.notes:
        screen.print(note, style="yellow", markup=False)
    for setting in result.settings:
        screen.print()
        for sentence in setting.answer:
            screen.print(sentence, markup=False)
        if setting.own_starts:
            screen.print(own_starts(setting.own_starts), markup=False)
        if setting.starts and (setting.setting.recipe == "authors" or setting.setting.start == "old"):
            _print_starts(screen, setting)
        rows = summary_rows(setting)
        left_out = (*PAGE_ONLY, "saved MB") if "vs its control" in rows[0] else PAGE_ONLY
        screen.print(table(rows, columns=[name for name in rows[0] if name not in left_out]))
        if len(rows) <= FEW:
            for sentence in setting.statements.values():
                screen.print(f"- {sentence}", markup=False)


def _print_starts(screen: Console, setting: SettingResult) -> None:
    """How the schemes begin, and where that is from; a control begins as its scheme does."""
    rows = [line for line, row in zip(start_rows(setting), setting.starts, strict=True) if not row.is_control]
    screen.print(table(rows, title=STARTS_CAPTION, columns=[name for name in rows[0] if name != "from"]))
    for row in setting.starts:
        if row.source and not row.is_control:
            screen.print(f"- {row.scheme}: {row.source}", markup=False)
