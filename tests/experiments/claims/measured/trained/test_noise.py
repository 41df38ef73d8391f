import pytest

from normlab.experiments.claims.measured.trained import noise
from tests.experiments.claims.measured.trained.fits import fits_its_claims, judged


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(noise, "STEPS", 800)
    monkeypatch.setattr(noise, "DRAWS", 8)


@pytest.mark.parametrize("name", ["bema-lag", "bema-memory", "gradient-noise"])
def test_the_criteria_can_read_it(name, tmp_path, short):
    assert judged(name, tmp_path)


def test_nulls(tmp_path, short):
    fits_its_claims("null-gradient-variance", tmp_path)
    fits_its_claims("null-distance-to-the-moving-optimum-over-that-of-the-raw-weights", tmp_path)


def test_an_average_is_nearer_where_nothing_moves(monkeypatch):
    """With no drift the raw weights only shake: the EMA is nearer to the optimum."""
    monkeypatch.setattr(noise, "SPEED", 0.0)
    monkeypatch.setattr(noise, "STEPS", 4000)
    monkeypatch.setattr(noise, "EVERY", 4)
    assert max(noise.drift([0, 1, 2])["ema"]) < 0.7


def test_sampled_targets_add_variance():
    exact, sampled = (noise.gradient_variance(0, legal=8, targets=kind) for kind in ("exact", "sampled"))
    assert sampled > 1.5 * exact > 0
