"""Rows to JSON and back: absent, null and a number are three things."""

import math
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from normlab.probes.measure.table import AttentionRow, GradientRow, LayerRow, column, joined, plain, ratios

ROW = LayerRow(3, attention_norm=2.0, attention_ratio=0.5, ffn_norm=4.0, norm=math.nan)


def test_absent_is_none_and_null_is_nan_and_both_come_back():
    assert plain(ROW) == {"layer": 3, "attention_norm": 2.0, "attention_ratio": 0.5, "ffn_norm": 4.0, "norm": None}
    again = TypeAdapter(LayerRow).validate_python(plain(ROW))
    assert math.isnan(again.norm)
    assert again.entropy is None
    assert plain(again) == plain(ROW)


def test_a_branch_exists_where_its_norm_was_measured():
    assert [branch.kind for branch in ROW.branches] == ["attention", "ffn"]
    assert ROW.branch("attention").ratio == 0.5
    assert math.isnan(ROW.branch("ffn").ratio)
    assert LayerRow(0).branches == ()
    assert ratios([ROW, LayerRow(4)], "attention") == [0.5, pytest.approx(math.nan, nan_ok=True)]


def test_joining_adds_what_a_stage_measured_and_overwrites_nothing_with_nothing():
    rows = [LayerRow(0, entropy=0.25), LayerRow(1, entropy=0.5)]
    both = joined(joined(rows, [AttentionRow(1, sink_mass=0.1)]), [GradientRow(0, gradient_norm=7.0)])
    assert column(both, lambda row: row.entropy) == [0.25, 0.5]
    assert (both[0].gradient_norm, both[0].sink_mass) == (7.0, None)
    assert (both[1].gradient_norm, both[1].sink_mass) == (None, 0.1)
    assert asdict(rows[1])["sink_mass"] is None


def test_plain_leaves_nothing_that_json_cannot_hold():
    assert plain({1: (math.inf, [math.nan, 2]), "a": (ROW.branches[0],)})["1"] == [None, [None, 2]]
