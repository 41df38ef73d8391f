import json

import pytest

from normlab.experiments.timing import FILE, StepTimes, read_costs, relative


def test_relative_goes_by_way_of_the_reference():
    """The machine was twice as slow while the second was timed; its reference was too."""
    base, other = StepTimes([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]), StepTimes([3.0, 3.0, 3.6], [2.0, 2.0, 2.0])
    found = relative(other, base)
    assert (found.time, found.low, found.high) == pytest.approx((1.5, 1.5, 1.65))
    assert found.seconds == pytest.approx(1.5)
    assert relative(base, base).time == 1.0
    assert relative(None, base) is relative(base, None) is None


def test_a_damaged_file_is_no_cost(tmp_path):
    assert read_costs([tmp_path]) == {}
    (tmp_path / FILE).write_text("{")
    assert read_costs([tmp_path]) == {}
    (tmp_path / FILE).write_text(json.dumps({"rows": [{"scheme": "x"}]}))
    assert read_costs([tmp_path]) == {}
