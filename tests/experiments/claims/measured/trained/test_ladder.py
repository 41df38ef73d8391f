import pytest

from normlab.experiments.claims.measured.trained import ladder
from normlab.experiments.compare.presets import PRESETS
from normlab.tasks import task
from tests.experiments.claims.measured.trained.fits import judged

TINY = {
    "depths": (1,), "dim": 8, "heads": 1, "batch": 2, "length": 8, "tokens": 320, "lrs": (1e-3,), "tune_seeds": 1,
    "tune_share": 1.0, "task": task("tomita", number=4),
}  # fmt: skip


@pytest.mark.slow
def test_the_criteria_can_read_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "preset", lambda name: {**PRESETS[name], **TINY})
    found = judged("ladder", tmp_path / "claims")
    assert {"000-14", "000-15", "000-22", "001-21", "004-09"} <= set(found)


def test_a_folder_without_every_scheme_is_not_taken(tmp_path):
    assert ladder._finished(tmp_path, ("pre_norm",)) is None


@pytest.mark.parametrize(("start", "end"), [(2.5, 2.0)])
def test_the_change_through_the_decay(start, end):
    from normlab.experiments.compare.result import LossCurve
    from tests.experiments.compare.rows import row

    made = row("pre_norm", [2.0], curve={0: LossCurve([1, 7, 10], [3.0, start, end], 7)})
    assert ladder.through_decay(made, 0) == end - start
    assert ladder.at_step(made, 0, 6) == start
