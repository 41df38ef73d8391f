import json

import pytest

from normlab.experiments.runs.config import setting_of
from normlab.experiments.timing import FILE, StepTimes, read_costs, relative
from tests.experiments.tiny import tiny


def test_times_are_compared_by_way_of_the_reference_beside_them():
    """The machine was twice as slow while the second was timed; their ratios to what ran beside them do not see it."""
    base = StepTimes([1.2, 1.2, 1.2], [1.0, 1.0, 1.0])
    slow = StepTimes([6.0, 6.6, 7.2], [2.0, 2.0, 2.0])
    found = relative(slow, base)
    assert found.time == pytest.approx(3.3 / 1.2)
    assert found.low <= found.time <= found.high
    assert found.seconds == pytest.approx(3.3)
    assert relative(base, base).time == 1.0
    assert relative(None, base) is None


def test_costs_are_read_by_setting_and_damage_is_no_cost(tmp_path):
    config = tiny()
    row = {"setting": config.setting(), "scheme": "keel", "seconds": [2.0], "reference": [1.0]}
    (tmp_path / FILE).write_text(json.dumps({"rows": [row]}))
    key = (setting_of(json.loads(config.setting())), "keel")
    assert read_costs([tmp_path / "nowhere", tmp_path]) == {key: StepTimes([2.0], [1.0])}
    assert key[0] == config.setting() == tiny("keel", seed=5, lr=0.1).setting()
    for damage in ("{", "[]", '{"rows": [1]}', '{"rows": [{"setting": "x"}]}'):
        (tmp_path / FILE).write_text(damage)
        assert read_costs([tmp_path]) == {}
