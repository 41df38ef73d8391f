"""The page says what the entries hold: a colour a scheme, laws dotted, shares of norms."""

import math

import pytest

from normlab.experiments.atlas import page as pages
from normlab.experiments.atlas.measure import Atlas, AtlasEntry
from normlab.experiments.atlas.request import AtlasRequest
from normlab.report.colours import scheme_colour


def entry(scheme, **changes):
    values = {
        "scheme": scheme, "equation": "x <- x + F(N(x))", "parameters": 10, "residual_parameters": 3, "loss": 5.5,
        "stream": [1.0, 2.0, 3.0, 4.0, 5.0], "law": [1.0, 1.5, 2.0, 2.5, 3.0], "contribution": [1.0, 0.5, 0.25, 0.2],
        "effect": [0.4, 0.2, 0.1, 0.05], "same_as": None,
        "influence": [0.1, 0.1, 0.1, 0.1], "gradient_share": [0.75, 0.25], "mixing": None, "step_ratio": 1.0,
    }  # fmt: skip
    return AtlasEntry(**{**values, **changes})


def test_the_table():
    (row,) = pages.rows([entry("pre_norm")])
    assert row["growth"] == pytest.approx(4 / 3)
    assert row["law"] == pytest.approx(2.5 / 2)
    assert (row["last adds"], row["last effect"]) == (0.2, 0.05)
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


def test_one_function_is_one_group_in_the_sentence():
    named = [entry("pre_norm"), entry("post_norm", effect=[0.3] * 4), entry("block_attn_res", same_as="pre_norm")]
    _, effects = pages.sentences(Atlas(AtlasRequest(depth=2), tuple(named)))
    assert effects == (
        "Taking out the last branch changes what the head reads by 5 % in pre_norm and block_attn_res (both compute the "
        "same function here), 30 % in post_norm."
    )
    (_,) = pages.sentences(Atlas(AtlasRequest(depth=2), (entry("mhc"),)))


def test_the_picture_fits_and_has_the_mean_of_a_layer():
    assert pages.by_layer([1.0, 3.0, None, 2.0]) == [2.0, None]
    ngpt = entry("ngpt", contribution=[], stream=[1.0, 1.0, 1.0, math.inf, 1.0])
    _, head, pre, sphere, *_ = pages.picture(Atlas(AtlasRequest(depth=2), (entry("pre_norm"), ngpt)), width=80)
    assert max(map(len, (head, pre, sphere))) <= 80
    assert head.split() == ["stream", "adds", "effect", "gradient", "grows"]
    assert pre.endswith("1.3x")
    assert sphere.endswith("inf")
