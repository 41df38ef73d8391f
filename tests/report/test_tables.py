import csv
import io
import math

import pytest

from normlab.report import Page
from normlab.report.tables import (
    Column,
    all_columns,
    csv_text,
    fitted,
    html_table,
    layout,
    markdown_table,
    plain_text,
    terminal_table,
)

ROWS = [{"scheme": "a|b", "loss": 1.23456, "on": True}, {"scheme": "=1+1", "loss": math.nan, "more": 3}]


def test_layout_shortens_and_aligns():
    view = layout(ROWS, ["scheme", "loss", "missing"])
    assert view.cells == (("a|b", "1.235", "-"), ("=1+1", "nan", "-"))
    assert view.numeric == (False, True, True)
    assert layout([]).columns == ()
    assert all_columns(ROWS) == ["scheme", "loss", "on", "more"]


def test_csv_holds_full_values_and_reads_back():
    read = list(csv.reader(io.StringIO(csv_text(ROWS))))
    assert read == [["scheme", "loss", "on", "more"], ["a|b", "1.23456", "True", ""], ["'=1+1", "", "", "3"]]
    assert csv_text(ROWS, ["loss"]) == 'loss\n1.23456\n""\n'


@pytest.mark.parametrize("text", ["=SUM(A1)", "+cmd", "-cmd|x", "@x", "\tx", "\r=1", "-", "+1 %"])
def test_no_text_is_a_formula(text):
    assert plain_text(text) == f"'{text}"
    page = Page("t")
    page.table([{text: text}], name="x")
    page.csv([{"a": text}], name="y")
    assert all(f'"{text[:1]}' not in part["csv"].replace("\\t", "\t").replace("\\r", "\r") for part in page.parts)


@pytest.mark.parametrize("value", [-1.5, 3, "-1.5", "+2e-3", "-inf", "plain", "", None, "a=b", True])
def test_numbers_and_plain_texts_stay(value):
    assert plain_text(value) is value


def test_html_is_escaped_and_markdown_keeps_its_columns():
    drawn = html_table([{"<b>": "<script>", "n": 1}], caption="<i>")
    assert "<script>" not in drawn
    assert "<b>" not in drawn
    assert '<td class="number">1</td>' in drawn
    assert markdown_table(ROWS, ["scheme", "loss"]).splitlines()[2] == "| a\\|b | 1.235 |"
    assert terminal_table(ROWS, title="x").row_count == 2


def test_a_table_fits_and_no_two_cells_touch():
    columns = [
        Column("layer", ("0", "1"), 9),
        Column("large", ("-123456.789", "1e+30"), 1),
        Column("name", ("a", "bcd"), 5, text=True),
    ]
    lines, dropped = fitted(columns, width=80)
    assert lines == [
        "layer        large  name",
        "------------------------",
        "    0  -123456.789  a",
        "    1        1e+30  bcd",
    ]
    assert dropped == []
    lines, dropped = fitted(columns, width=20)
    assert dropped == ["large"]
    assert max(map(len, lines)) <= 20
    assert fitted([Column("a long name", ("x" * 50,), text=True)], width=10)[0][2] == "xxxxxxxxx…"
    assert fitted([], width=10) == ([], [])
