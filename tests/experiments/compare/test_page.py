from dataclasses import replace

import pytest

from normlab.experiments.compare.page import build, more_rows, names_of, summary_rows
from normlab.experiments.compare.result import MARKS, Comparison
from normlab.experiments.timing import RelativeCost
from tests.experiments.compare.rows import BASE, NONE, answered, row


def test_the_table_has_the_difference_and_its_interval_and_the_baseline_has_none():
    found = answered(row("pre_norm", BASE), row("keel", [2.5, 2.6, 2.7], BASE, low=2.4, high=2.8))
    base, other = summary_rows(found)
    assert base["vs pre_norm"] is None
    assert (other["vs pre_norm"], other["± 95 %"], other["params (M)"]) == pytest.approx((0.5, 0.2, 2.0))


def test_columns_that_say_nothing_are_left_out():
    rows = [row("pre_norm", BASE), row("keel", [2.5, 2.6, None], None)]
    assert "diverged" in summary_rows(answered(*rows))[0]
    assert "step time" not in summary_rows(answered(*rows))[0]
    timed = [replace(found, cost=RelativeCost(1.25, 1.2, 1.3, 0.1)) for found in rows[:1]]
    assert summary_rows(answered(*timed))[0]["step time"] == 1.25
    assert "diverged" not in summary_rows(answered(*timed))[0]
    assert more_rows(answered(*timed))[0]["step time, quartiles"] == "1.20 to 1.30"


def test_settings_are_named_by_what_tells_them_apart():
    def named(*shapes):
        return names_of([answered(row("pre_norm", BASE), depth=depth, dim=dim) for depth, dim in shapes])

    assert named((4, 8)) == [""]
    assert named((4, 8), (6, 8)) == ["4 layers", "6 layers"]
    assert named((4, 8), (4, 16)) == ["4 layers of width 8", "4 layers of width 16"]
    assert named((4, 8), (4, 8)) == ["4 layers of width 8, 1", "4 layers of width 8, 2"]


def test_the_page_holds_notes_and_sentences_escaped():
    text = build(Comparison(["<b>left out</b>"], [answered(row("pre_norm", BASE))], [])).render()
    assert "&lt;b&gt;left out&lt;/b&gt;" in text
    assert "The answer." in text
    assert "pre_norm was measured." in text


def test_effects_are_drawn_where_the_runs_have_them_and_not_available_for_older_runs():
    def at(effect):
        found = replace(NONE, magnitude=[1.0] * 9, effect=effect)
        return {"layers": dict.fromkeys(MARKS, found), "law": [1.0] * 9}

    setting = answered(row("pre_norm", BASE), row("keel", [2.5, 2.6, 2.7], BASE))
    newer, older = setting.schemes
    half = replace(setting, schemes=[replace(newer, **at([0.4, 0.3] * 4)), replace(older, **at(None))])
    text = build(Comparison([], [half], [])).render()
    assert "Effect of a branch: how much what the head reads changes" in text
    assert "Effect of a branch: n/a for keel (trained before it was measured)." in text
    none = replace(half, schemes=[replace(found, **at(None)) for found in half.schemes])
    text = build(Comparison([], [none], [])).render()
    assert "Effect of a branch: how much" not in text
    assert "n/a for pre_norm, keel" in text
    both = replace(half, schemes=[replace(found, **at([0.1] * 8)) for found in half.schemes])
    assert "Effect of a branch: n/a" not in build(Comparison([], [both], [])).render()
