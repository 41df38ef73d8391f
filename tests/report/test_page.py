import math
import sys

import pytest

from normlab.errors import MissingDependencyError, PageNotWritten
from normlab.report import Page, print_page, write_page
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


@pytest.mark.parametrize("absent", ["plotly.offline", "jinja2"])
def test_an_answer_is_not_lost_for_its_page(absent, tmp_path, monkeypatch, capsys):
    """`write` says what is missing, `write_page` warns and goes on."""
    monkeypatch.setitem(sys.modules, absent, None)
    plotly_script.cache_clear()
    page = Page("A page")
    page.figure({"data": [], "layout": {}})
    with pytest.raises(MissingDependencyError, match="pip install"):
        page.write(tmp_path / "page.html")
    with pytest.warns(PageNotWritten, match=f"page not written: .* needs the package '{absent.split('.')[0]}'"):
        written = write_page(page, tmp_path / "page.html")
    assert written is None
    assert not any(tmp_path.iterdir())
    print_page(written)
    assert capsys.readouterr().out == ""
    monkeypatch.delitem(sys.modules, absent)
    print_page(write_page(page, tmp_path / "page.html"))
    assert "".join(capsys.readouterr().out.split()) == f"page:{tmp_path / 'page.html'}"
