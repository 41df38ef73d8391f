from dataclasses import fields

import pytest

from normlab.experiments.atlas.measure import Atlas, AtlasEntry
from normlab.experiments.atlas.page import build, rows
from normlab.experiments.atlas.request import AtlasRequest

BLANK = dict.fromkeys(f.name for f in fields(AtlasEntry))


def entry(scheme, **changes):
    """Two layers, four branches and the head."""
    values = {
        "scheme": scheme, "equation": "x <- x + F(N(x))", "stream": [1.0, 2.0, 3.0, 6.0, 7.0],
        "law": [1.0, 1.0, 2.0, 3.0, 4.0], "contribution": [1.0, 0.5, 0.4, 0.25], "influence": [0.1] * 4,
        "gradient_share": [0.75, 0.25], "residual_parameters": 10, "step_ratio": 1.0, "mixing": None,
    }  # fmt: skip
    return AtlasEntry(**{**BLANK, **values, **changes})


def test_the_table_by_hand():
    (row,) = rows([entry("pre_norm")])
    assert (row["growth"], row["law"], row["last adds"]) == pytest.approx((6 / 3, 3 / 2, 0.25))
    assert row["grad 1/L"] == pytest.approx(3.0)
    (still,) = rows([entry("rezero", gradient_share=[0.0, 0.0], law=[None] * 5, contribution=[])])
    assert (still["law"], still["last adds"], still["grad 1/L"]) == (None, None, None)


def test_only_uneven_mixing_is_drawn():
    even = [[1.0, 0.0], [1.0, 1.0]]
    uneven = [[1.0, 0.0], [0.9, 0.1]]
    request = AtlasRequest(schemes=("pre_norm", "attn_res"))
    plain = build(Atlas(request, [entry("pre_norm", mixing=even)]), command="normlab atlas <x>").render()
    assert "How depth is mixed" not in plain
    assert "normlab atlas &lt;x&gt;" in plain
    assert "How depth is mixed" in build(Atlas(request, [entry("attn_res", mixing=uneven)])).render()
