import pytest

from normlab.experiments.claims.bench import measures
from normlab.experiments.claims.measured.trained import nulls_by_length
from tests.experiments.claims.measured.trained.fits import fits_its_claims

OWN = [name for name, m in measures().items() if m.function.__module__ == nulls_by_length.__name__]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nulls")


@pytest.mark.parametrize("name", OWN)
def test_a_null_has_the_metric_of_its_claims(name, folder, monkeypatch):
    monkeypatch.setattr(nulls_by_length, "SHORT", 6)
    monkeypatch.setattr(nulls_by_length, "STEPS", 8)
    monkeypatch.setattr(nulls_by_length, "TWO_LAYER", {**nulls_by_length.TWO_LAYER, "test_count": 8})
    fits_its_claims(name, folder)
    assert measures()[name].seeds >= 20
