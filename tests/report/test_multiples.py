"""Small multiples share their axes, name each line once, and survive the page."""

import json
import re
from itertools import pairwise

from normlab.report import Page
from normlab.report.multiples import heatmaps, line, small_multiples


def test_panels_share_axes_and_legend():
    panels = {name: [line([0, 1], [1.0, 2.0], "start"), line([0, 1], [2.0, None], "end", 1)] for name in "abcd"}
    figure, height = small_multiples(panels, x="layer", y="size", log_y=True)
    layout = figure["layout"]
    assert len(figure["data"]) == 8
    assert [t["name"] for t in figure["data"] if t["showlegend"]] == ["start", "end"]
    assert all(layout[f"yaxis{i}"]["matches"] == "y" and layout[f"xaxis{i}"]["matches"] == "x" for i in (2, 3, 4))
    assert all(layout[k]["type"] == "log" for k in layout if k.startswith("yaxis"))
    assert [a["text"] for a in layout["annotations"]] == list("abcd")
    spans = [layout[f"xaxis{i}"]["domain"] for i in ("", 2, 3)]
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert spans[0][0] == 0
    assert abs(spans[-1][1] - 1) < 1e-9
    assert height > 300


def test_one_panel():
    figure, _ = small_multiples({"only": [line([0], [1], "a")]}, x="x", y="y")
    assert figure["layout"]["xaxis"]["domain"] == [0, 1]


def test_heatmaps_have_one_scale():
    figure, _ = heatmaps({"a": [[1.0, 0.0]], "b": [[0.5, 0.5]]}, x="source", y="read")
    assert {t["coloraxis"] for t in figure["data"]} == {"coloraxis"}


def test_csv_button_holds_every_row():
    page = Page("t")
    page.csv([{"a": 1, "b": "</script>"}, {"a": float("nan"), "c": 2}], name="rows", caption="<b>")
    html = page.render()
    raw = re.search(r'id="csv-1">(.*?)</script>', html)[1]
    assert json.loads(raw) == [["a", "b", "c"], [1, "</script>", None], [None, None, 2]]
    assert "&lt;b&gt;" in html
    assert "Save rows.csv" in html
