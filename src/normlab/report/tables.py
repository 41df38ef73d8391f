"""Tables of rows, for four readers: a terminal, a page, a spreadsheet and a Markdown file."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.table import Table as RichTable

from normlab.report.terminal import finite, show

Cell: TypeAlias = object  # a number, a text, a bool or None; `show` and `finite` decide
Row: TypeAlias = Mapping[str, Cell]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableView:
    """Rows laid out: the columns, what a reader sees in each cell, and which columns are numbers."""

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    raw: tuple[tuple[Cell, ...], ...]


def layout(rows: Sequence[Row], columns: Sequence[str] | None = None) -> TableView:
    """`columns` are those of the first row unless told."""
    names = tuple(columns or (rows[0].keys() if rows else ()))
    numeric = tuple(all(isinstance(row.get(name), (int, float, type(None))) for row in rows) for name in names)
    cells = tuple(tuple(show(row.get(name)) for name in names) for row in rows)
    return TableView(names, cells, numeric, tuple(tuple(row.get(name) for name in names) for row in rows))


def all_columns(rows: Sequence[Row]) -> list[str]:
    """Every key of every row, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


# -- for each reader --------------------------------------------------------------------------------------------------
def terminal_table(rows: Sequence[Row], *, title: str | None = None, columns: Sequence[str] | None = None) -> RichTable:
    """A rich table; numbers are right-aligned and shortened."""
    view = layout(rows, columns)
    drawn = RichTable(title=title, title_justify="left", header_style="bold", expand=False)
    for index, name in enumerate(view.columns):
        numeric = bool(rows) and view.numeric[index]
        widest = max([len(name), *(len(line[index]) for line in view.cells)])
        least = widest if numeric or widest <= 16 else None  # long texts fold, numbers and names never do
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold", min_width=least)
    for line in view.cells:
        drawn.add_row(*line)
    return drawn


@dataclass(frozen=True)
class Column:
    """A column of a table that must fit: what has the highest `keep` stays longest. Texts are left-aligned."""

    title: str
    cells: tuple[str, ...]
    keep: int = 0
    text: bool = False

    @property
    def width(self) -> int:
        return max([len(self.title), *(len(cell) for cell in self.cells)])


def fitted(columns: Sequence[Column], *, width: int, gap: int = 2) -> tuple[list[str], list[str]]:
    """(lines, titles that did not fit): a table no wider than `width`, with a gap between any two cells.

    Columns go by their `keep`, the least first; the first column always stays and is cut if it must be.
    """
    shown = list(columns)

    def total() -> int:
        return sum(column.width for column in shown) + gap * (len(shown) - 1)

    dropped: list[str] = []
    while total() > width and len(shown) > 1:
        least = min(shown[1:], key=lambda column: column.keep)
        shown.remove(least)
        dropped.append(least.title)
    if not shown:
        return [], []

    def line(cells: Sequence[str]) -> str:
        parts = []
        for column, cell in zip(shown, cells, strict=True):
            size = min(column.width, width)
            cut = cell if len(cell) <= size else cell[: size - 1] + "…"
            parts.append(cut.ljust(size) if column.text else cut.rjust(size))
        return (" " * gap).join(parts).rstrip()

    body = [line(cells) for cells in zip(*(column.cells for column in shown), strict=True)]
    rule = "-" * min(width, total())
    return [line([column.title for column in shown]), rule, *body], dropped


def html_table(rows: Sequence[Row], *, columns: Sequence[str] | None = None, caption: str = "") -> str:
    """Markup whose every text is escaped: what `Page.table` shows."""
    view = layout(rows, columns)
    kinds = [_class([line[i] for line in view.cells], numeric) for i, numeric in enumerate(view.numeric)]
    head = "".join(f'<th scope="col"{k}>{html.escape(c)}</th>' for c, k in zip(view.columns, kinds, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{k}>{html.escape(c)}</td>" for c, k in zip(line, kinds, strict=True)) + "</tr>"
        for line in view.cells
    )
    above = f"<caption><span>{html.escape(caption)}</span></caption>" if caption else ""
    inside = f"{above}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{inside}</table></div>'


def _class(cells: Sequence[str], numeric: bool) -> str:
    """Names stay whole and sentences get room: a phone scrolls sideways rather than read a word a line."""
    longest = max(map(len, cells), default=0)
    kind = "number" if numeric else "short" if longest <= 16 else "long" if longest > 32 else ""
    return f' class="{kind}"' if kind else ""


def markdown_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    view = layout(rows, columns)
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in view.cells]
    return "\n".join(["| " + " | ".join(view.columns) + " |", "|" + "---|" * len(view.columns), *body])


def csv_text(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Comma-separated values: a cell is empty where there is no number, and no text is a formula to a spreadsheet.

    `columns` are all that any row has unless told; what a row has beyond them is left out.
    """
    names = list(columns or all_columns(rows))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([plain_text(name) for name in names])
    writer.writerows([[plain_text(finite(row.get(name))) for name in names] for row in rows])
    return text.getvalue()


def plain_text(value: Cell) -> Cell:
    """A text that a spreadsheet would run as a formula gets an apostrophe in front; numbers, signed too, stay."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
