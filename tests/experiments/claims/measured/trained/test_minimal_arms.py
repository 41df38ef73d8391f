import pytest

from normlab.errors import InputError
from normlab.experiments.claims.measured.trained import minimal_arms
from tests.experiments.claims.measured.trained.fits import judged

NAMES = ["set-complement-arms", "002-01", "weight-decay", "norm-kinds", "sparse-attention"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("claims")


@pytest.mark.parametrize("name", NAMES)
def test_the_criteria_can_read_it(name, folder, monkeypatch):
    monkeypatch.setattr(minimal_arms, "STEPS", 8)
    found = judged(name, folder)
    assert found
    assert all(r.n >= 1 for finding in found.values() for r in finding.readings)


def test_the_law_of_the_construction():
    assert minimal_arms._law_residual(8, 3.0) < 1e-12


def test_arms_are_taken_from_the_file():
    found = minimal_arms.arm_on_file(minimal_arms.TV, minimal_arms.NOTHING, seeds=3)
    assert len(found.values) == 3
    with pytest.raises(InputError, match="fewer seeds; measure 002-02"):
        minimal_arms.arm_on_file(minimal_arms.TV, minimal_arms.NOTHING, seeds=99)
