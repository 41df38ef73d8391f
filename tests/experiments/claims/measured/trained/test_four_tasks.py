import pytest

from normlab.experiments.claims.measured.trained import four_tasks, minimal_arms
from tests.experiments.claims.measured.trained.fits import judged


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("claims")


@pytest.fixture
def small(monkeypatch):
    for name, value in {"STEPS": 6, "WIDTH_STEPS": 4, "TEXT_STEPS": 4, "SEEDS": 2, "ON_THE_WAY": (4,)}.items():
        monkeypatch.setattr(four_tasks, name, value)
    monkeypatch.setattr(minimal_arms, "STEPS", 8)
    monkeypatch.setattr(four_tasks, "TWO_LAYER", {**four_tasks.TWO_LAYER, "test_count": 8})


@pytest.mark.parametrize("name", ["benchmark-tasks", "peri-norm", "sequence-auc", "widths", "language-length"])
def test_the_criteria_can_read_it(name, folder, small):
    assert judged(name, folder)


def test_what_was_reached_is_said(folder, small):
    from normlab.experiments.claims.bench import Bench

    assert four_tasks.task_runs(Bench((0, 1), folder / "x"), "dyck").step == 4
