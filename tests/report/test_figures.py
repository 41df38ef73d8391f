"""Pictures: lines, theory and bands; small multiples share their axes, name each line once, and survive the page."""

import json
import re
from itertools import pairwise

from normlab.report import Page
from normlab.report.colours import PALETTE
from normlab.report.figures import (
    band,
    bars,
    every_so_many,
    figure,
    heatmaps,
    intervals,
    line,
    log_ticks,
    marked,
    small_multiples,
    theory,
    ticks,
)


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


def test_a_figure_has_axes_and_a_theory_that_looks_like_one():
    drawn = figure([line([1, 2], [3, 4], "a", 1), theory([1, 2], [3, 4], "law")], x="layer", y="rms", log_y=True)
    assert drawn["layout"]["yaxis"]["type"] == "log"
    assert drawn["layout"]["xaxis"]["title"]["text"] == "layer"
    measured, predicted = drawn["data"]
    assert measured["line"] == {"color": PALETTE[1], "width": 2, "dash": "solid"}
    assert predicted["line"]["dash"] == "dot"
    assert predicted["line"]["color"] not in PALETTE
    assert band([1, 2], [0, 1], [2, 3])["y"] == [2, 3, 1, 0]
    assert ticks([8, 0.001]) == {"tickvals": [8, 0.001], "ticktext": ["8", "0.001"]}
    html = Page("t")
    html.figure(drawn)
    assert '"name":"law"' in html.render()


def test_intervals_reach_from_low_to_high_and_one_seed_is_an_open_circle():
    points = {"pre_norm": (0.5, 0.25, 1.0), "mhc": (0.1, None, None), "ngpt": (None, None, None)}
    drawn, height = intervals(points, x="loss - pre_norm's")
    assert [trace["name"] for trace in drawn["data"]] == ["mhc", "pre_norm"]
    assert drawn["data"][1]["error_x"]["array"] == [0.5]
    assert drawn["data"][1]["error_x"]["arrayminus"] == [0.25]
    assert "error_x" not in drawn["data"][0]
    assert [t["marker"]["symbol"] for t in drawn["data"]] == ["circle-open", "circle"]
    assert height > 90
    assert drawn["layout"]["shapes"][0]["x0"] == 0


def test_ticks_of_a_logarithmic_axis_are_numbers_that_people_say():
    assert log_ticks([1.5, 40.0])["ticktext"] == ["1", "2", "5", "10", "20", "50", "100", "200", "500"]
    assert log_ticks([1e-4, 1.0])["ticktext"] == ["0.0001", "0.001", "0.01", "0.1", "1"]
    assert log_ticks([None, 0.0, -1.0, float("nan")]) == {}
    assert len(log_ticks([1e-30, 1.0])["tickvals"]) <= 10


def test_every_so_many():
    assert every_so_many(4) == [0, 1, 2, 3]
    assert every_so_many(30) == [0, 5, 10, 15, 20, 25, 29]
    assert every_so_many(101)[-1] == 100
    assert every_so_many(0) == []


def test_marks_join_neighbours_and_name_each_kind_once():
    drawn = marked({3: "warn", 4: "warn", 7: "bad", 9: "warn"})
    assert [(shape["x0"], shape["x1"]) for shape in drawn] == [(2.5, 4.5), (6.5, 7.5), (8.5, 9.5)]
    assert [shape["showlegend"] for shape in drawn] == [True, True, False]
    assert all(shape["layer"] == "below" for shape in drawn)


def test_bars_have_error_bars_where_there_is_an_error():
    assert bars([0, 1], [1.0, 2.0], "a", reach=[0.1, None])["error_y"]["array"] == [0.1, None]
    assert "error_y" not in bars([0], [1.0], "a")
