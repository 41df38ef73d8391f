import math

from normlab.report import Page

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
