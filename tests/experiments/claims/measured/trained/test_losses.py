import pytest

from normlab.experiments.claims.measured.trained import ladder, losses
from normlab.experiments.compare.presets import PRESETS
from tests.experiments.claims.measured.trained.fits import fits_its_claims, judged
from tests.experiments.claims.measured.trained.test_ladder import TINY


@pytest.fixture
def tiny(monkeypatch):
    for module in (ladder, losses):
        monkeypatch.setattr(module, "preset", lambda name: {**PRESETS[name], **TINY})
    monkeypatch.setattr(losses, "DEEP", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["res-norm", "inner-placements", "depths"])
def test_the_criteria_can_read_it(name, tmp_path, tiny):
    assert judged(name, tmp_path)


@pytest.mark.parametrize(
    "name", ["null-held-out-loss", "null-change-of-the-loss-through-the-decay", "null-gain-of-doubling-the-depth"]
)
def test_nulls(name, tmp_path, tiny):
    fits_its_claims(name, tmp_path, seeds=4 if "gain" in name else 2)
