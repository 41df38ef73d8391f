"""Figures hold the numbers of the diagnosis, and there is none of what was not measured."""

import math

import pytest

from normlab.probes.diagnosis import Diagnosis, Mixing
from normlab.probes.measure.bounds import Theory
from normlab.probes.measure.summary import LengthRow, summarise
from normlab.probes.measure.table import LayerRow, StreamRow
from normlab.probes.show import figures


def diagnosis(name="one", *, rows=None, **more):
    rows = rows or tuple(LayerRow(i, norm=2.0 + i, norm_median=1.0 + i) for i in range(4))
    return Diagnosis(name, "Layer", "pre_norm", False, 0.0, StreamRow(), rows, summarise(rows), **more)


def test_lines_are_the_columns_and_names_tell_models_apart():
    alone, both = figures.norms([diagnosis()]), figures.norms([diagnosis(), diagnosis("two")])
    assert [(trace["name"], list(trace["y"])) for trace in alone["data"]] == [
        ("median token", [1, 2, 3, 4]),
        ("mean over tokens", [2, 3, 4, 5]),
    ]
    assert [trace["name"] for trace in both["data"]][::2] == ["one: median token", "two: median token"]


def test_theory_is_drawn_beside_one_model_only():
    d = diagnosis(theory=Theory(orthogonal=(1.0, 1.5, 2.0, 2.5)))
    assert [trace["name"] for trace in figures.norms([d])["data"]][2:] == ["if branches were orthogonal"]
    assert len(figures.norms([d, d])["data"]) == 4


def test_what_was_not_measured_has_no_figure():
    d = diagnosis()
    for draw in (figures.tokens, figures.lengths, figures.skips):
        assert draw([d]) is None
    assert figures.angles(d) is None
    assert figures.mixing(d) is None


def test_attention_that_averages_lies_on_the_line_of_one_over_n():
    rows = tuple(LengthRow(n, 1.0, 4 / n, 0.0, 1.0) for n in (8, 16, 64))
    drawn = figures.lengths([diagnosis(lengths=rows)])
    assert drawn["data"][-1]["name"].startswith("1/n")
    assert list(drawn["data"][-1]["y"]) == pytest.approx(list(drawn["data"][0]["y"]))


def test_matrices_keep_their_orientation():
    lower = ((1.0, 0.0), (0.5, 2.0))
    assert [list(row) for row in figures.mixing(diagnosis(mixing=Mixing(matrix=lower)))["data"][0]["z"]] == [
        [1.0, 0.0],
        [0.5, 2.0],
    ]
    heat = figures.angles(diagnosis(angular=((0.1, 0.2, 0.3), (0.4, 0.5), (0.6,))))["data"][0]["z"]
    assert [list(row) for row in heat] == [[0.1, 0.4, 0.6], [0.2, 0.5, None], [0.3, None, None]]
    assert not math.isnan(heat[0][0])
