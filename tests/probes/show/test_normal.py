"""The band of healthy models: real ones, of this kind, and never the model itself."""

import math
from dataclasses import replace

import pytest

from normlab.probes.show import figures, normal
from normlab.probes.show.normal import COLUMNS, FEWEST, Gallery, Healthy, at_steps, band_of, gallery, group_of
from tests.probes.show.test_figures import diagnosis


@pytest.fixture
def four(monkeypatch):
    models = {f"m{i}": Healthy("pre", {"entropy": tuple(float(i + step) for step in range(11))}) for i in range(4)}
    monkeypatch.setattr(normal, "gallery", lambda: Gallery("", models))
    return models


def test_a_column_is_read_at_even_places_of_the_depth():
    assert at_steps([0.0, 10.0]) == pytest.approx(tuple(range(11)))
    assert at_steps([3.0]) == (3.0,) * 11


def test_the_band_reaches_from_the_smallest_to_the_largest(four):
    found = band_of("entropy", replace(diagnosis(), layers=diagnosis().layers[:3]))
    assert (found.low, found.high, found.models) == ((0.0, 5.0, 10.0), (3.0, 8.0, 13.0), 4)


def test_the_model_itself_is_left_out_and_then_there_are_too_few(four):
    assert FEWEST == 4
    assert band_of("entropy", diagnosis("m1")) is None
    assert band_of("entropy", replace(diagnosis(), placement="post_norm")) is None
    assert band_of("ffn_typical", diagnosis()) is None


def test_the_band_lies_behind_the_line_of_one_model(four):
    rows = tuple(replace(row, entropy=0.5) for row in diagnosis().layers)
    drawn = figures.per_layer([diagnosis(rows=rows)], figures.ATTENTION)
    assert [trace.get("fill") for trace in drawn["data"]] == ["toself", None]
    assert drawn["data"][0]["name"] == "entropy / log n: 4 healthy models"
    assert len(figures.per_layer([diagnosis(rows=rows)] * 2, figures.ATTENTION)["data"]) == 2


def test_the_gallery_that_ships_has_both_kinds_and_real_numbers():
    groups = [model.group for model in gallery().models.values()]
    assert min(groups.count("pre"), groups.count("post")) >= FEWEST + 1
    for model in gallery().models.values():
        assert set(model.columns) <= set(COLUMNS)
        assert all(len(values) == 11 and all(map(math.isfinite, values)) for values in model.columns.values())
    assert group_of("post_norm") == "post"
    assert group_of("peri_norm") == "pre"
