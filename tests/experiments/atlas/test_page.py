"""The page says what the entries hold: a colour a scheme, laws dotted, shares of norms."""

import pytest

from normlab.experiments.atlas import page as pages
from normlab.experiments.atlas.measure import Atlas, AtlasEntry
from normlab.experiments.atlas.request import AtlasRequest
from normlab.report.colours import scheme_colour


def entry(scheme, **changes):
    values = {
        "scheme": scheme, "equation": "x <- x + F(N(x))", "parameters": 10, "residual_parameters": 3, "loss": 5.5,
        "stream": [1.0, 2.0, 3.0, 4.0, 5.0], "law": [1.0, 1.5, 2.0, 2.5, 3.0], "contribution": [1.0, 0.5, 0.25, 0.2],
        "influence": [0.1, 0.1, 0.1, 0.1], "gradient_share": [0.75, 0.25], "mixing": None, "step_ratio": 1.0,
    }  # fmt: skip
    return AtlasEntry(**{**values, **changes})


def test_the_table():
    (row,) = pages.rows([entry("pre_norm")])
    assert row["growth"] == pytest.approx(4 / 3)
    assert row["law"] == pytest.approx(2.5 / 2)
    assert row["grad 1/L"] == pytest.approx(3), "a ratio of norms, since shares are of norms"
    (closed,) = pages.rows([entry("rezero", gradient_share=[0.0, 0.0], contribution=[])])
    assert closed["grad 1/L"] is closed["last adds"] is None


def test_colours_laws_and_uneven_mixing():
    atlas = Atlas(
        AtlasRequest(depth=2),
        (entry("pre_norm", mixing=[[1.0, 0.0], [1.0, 1.0]]), entry("mhc", mixing=[[1.0, 0.0], [0.2, 1.0]])),
    )
    html = pages.build(atlas, command="normlab atlas --depth 2").render()
    assert scheme_colour("pre_norm") in html
    assert scheme_colour("mhc") in html
    assert html.count('"type":"heatmap"') == 1, "equal rows are not drawn"
    assert "Gradient: share of each layer" in html
    assert "normlab atlas --depth 2" in html
