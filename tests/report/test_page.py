import math

import pytest

from normlab.report import Page
from normlab.report.page import plotly_script

NASTY = "<script>alert(1)</script> & 'x' \"y\" </script>"


def page():
    made = Page(NASTY, subtitle=NASTY)
    made.heading(NASTY)
    made.text(NASTY, style="lead")
    made.code(NASTY)
    made.table([{"name": NASTY, NASTY: 1.5}, {"name": "b", NASTY: math.nan}], name="data", caption=NASTY)
    made.figure({"data": [{"y": [1, math.inf], "name": NASTY}], "layout": {}}, caption=NASTY)
    return made


def test_everything_shown_is_escaped():
    text = page().render()
    assert "<script>alert" not in text
    assert text.count("alert(1)") >= 8
    assert "\\u003c/script>" in text
    assert "&lt;script&gt;" in text


def test_the_page_is_one_file_without_network(tmp_path):
    path = page().write(tmp_path / "deep" / "report.html")
    text = path.read_text()
    assert len(text) < 7e6
    assert "default-src 'none'" in text
    assert text.count("<script>/**") <= 1
    plain = Page("no plots")
    plain.text("x")
    assert len(plain.render()) < 20_000, "plotly is inlined only where there is a plot"


def test_plotly_is_parsed_once():
    """Brackets around its outermost function, and not a letter otherwise; a plotly that is written otherwise is left."""
    offline = pytest.importorskip("plotly.offline")
    plain, ours = offline.get_plotlyjs(), plotly_script()
    assert ": this, (() => {" in ours
    assert ours.replace(": this, (() => {", ": this, () => {").rstrip()[:-5] == plain.rstrip()[:-4]
