import pytest

from normlab.experiments.claims.measured.trained import averages
from tests.experiments.claims.measured.trained.fits import judged


@pytest.mark.parametrize("name", ["bema-many", "bema-few", "bema-memory"])
def test_the_criteria_can_read_it(name, tmp_path, monkeypatch):
    monkeypatch.setattr(averages, "FEW_STEPS", 6)
    monkeypatch.setattr(averages, "MANY", {**averages.MANY, "steps": 6, "batch": 4})
    assert judged(name, tmp_path)


def test_the_knobs_of_a_seed_are_chosen_by_the_others(monkeypatch):
    """The setting that is best for seed 2 alone is not taken for it."""
    scores = {"a": [0.1, 0.1, 0.9], "b": [0.2, 0.2, 0.0]}
    monkeypatch.setattr(averages, "rows_of", lambda one, *_: one)
    monkeypatch.setattr(averages, "at_length", lambda one, *_: scores[one])
    assert averages._chosen({"a": "a", "b": "b"}, "bema") == [0.2, 0.2, 0.9]
