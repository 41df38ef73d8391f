"""Intervals and counts as markup: in their place, escaped, with ticks that do not touch."""

import math
import re

from normlab.report.strips import APART, Interval, counts, interval


def lefts(markup, kind):
    return [float(found) for found in re.findall(rf'<{kind} style="left:([\d.]+)%', markup)]


def test_an_interval_in_its_place():
    drawn = interval(Interval("a <b>", 1.0, 0.5, 1.5, (0.0, 2.0)), colour="#123456")
    assert "a &lt;b&gt;" in drawn
    (mean,) = lefts(drawn, 'i class="mean"')
    assert mean == 50.0
    assert re.search(r'class="claimed" style="left:16.67%;width:66.67%"', drawn), "a quarter of air on either side"


def test_an_open_range_ends_with_the_axis():
    drawn = interval(Interval("a", 1.0, None, None, (-math.inf, 2.0)), colour="#000000")
    (left,) = lefts(drawn, 'i class="claimed"')
    assert left == 0
    assert 'class="reach"' not in drawn


def test_ticks_do_not_touch():
    drawn = interval(Interval("a", 2.01, 2.0, 2.02, (0.0, 2.0)), colour="#000000")
    places = sorted(lefts(drawn, "span"))
    assert len(places) == 2, "the measurement stands beside the end of the range"
    assert places[1] - places[0] > 100 * APART


def test_counts_are_as_wide_as_their_numbers():
    drawn = counts(
        {"one": {"yes": 3, "no": 1}, "two": {"yes": 0, "no": 2}}, {"yes": "#0a0", "no": "#a00", "never": "#000"}
    )
    assert [float(w) for w in re.findall(r"width:([\d.]+)%", drawn)] == [75.0, 25.0, 50.0]
    assert 'aria-label="one: 3 yes, 1 no"' in drawn
    assert "never" not in drawn
