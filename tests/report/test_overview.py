"""Dots in columns: first name at the top, no dot for what is no number, two ticks at most."""

import math

from normlab.report.colours import scheme_colour
from normlab.report.overview import DotColumn, dot_columns


def test_columns():
    names = ["pre_norm", "post_norm", "no_norm"]
    drawn, height = dot_columns(
        names,
        [
            DotColumn("grows", {"pre_norm": 3.0, "post_norm": 1.0, "no_norm": 1e6}),
            DotColumn("adds", {"pre_norm": 0.1, "post_norm": math.nan, "no_norm": None}, neutral=None),
        ],
    )
    first, second = drawn["data"]
    assert first["marker"]["color"] == [scheme_colour(name) for name in names]
    assert second["y"] == ["pre_norm"]
    layout = drawn["layout"]
    assert layout["yaxis"]["categoryarray"] == names[::-1], "plotly fills from below"
    assert len(layout["xaxis"]["tickvals"]) <= 2
    assert len(layout["shapes"]) == 1, "only the first column has a neutral value"
    assert height > 3 * 20
