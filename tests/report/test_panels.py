"""Panels: axes of their own, one legend, and what the page needs to stack them."""

from normlab.report.figures import line
from normlab.report.panels import HEIGHT, Panel, panels


def test_panels():
    traces = [line([1, 2], [1.0, 10.0], "a"), line([1, 2], [2.0, 20.0], "b")]
    drawn, height = panels(
        [Panel("one", traces, "layer"), Panel("two", traces, "branch", log_y=False), Panel("three", traces, "x")]
    )
    layout = drawn["layout"]
    assert [trace["showlegend"] for trace in drawn["data"]] == [True, True, False, False, False, False]
    assert layout["xaxis2"]["title"]["text"] == "branch"
    assert (layout["yaxis"]["type"], layout["yaxis2"]["type"]) == ("log", "linear")
    assert layout["meta"]["panels"] == 3
    assert layout["yaxis3"]["domain"][1] < layout["yaxis"]["domain"][0], "the second row lies below the first"
    assert height > 2 * HEIGHT
