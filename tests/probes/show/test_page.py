"""The page: its sentences say the numbers, and every layer can be picked."""

import json
import re

from normlab.probes.diagnosis import Diagnosis
from normlab.probes.measure.bounds import Theory
from normlab.probes.measure.summary import summarise
from normlab.probes.measure.table import LayerRow, StreamRow, plain
from normlab.probes.show import words
from normlab.probes.show.page import build, growth_sentence


def diagnosis(name="my<b>model", *, power=0.5, **more):
    rows = tuple(LayerRow(i, norm=(i + 1) ** power, norm_median=(i + 1) ** power) for i in range(5))
    return Diagnosis(name, "Layer", "pre_norm", False, 1e-7, StreamRow(), rows, summarise(rows), **more)


def test_the_sentence_on_growth_has_the_measured_exponent_and_the_predicted_one():
    assert "0.50" in growth_sentence(diagnosis())
    assert "0.75" in growth_sentence(diagnosis(power=0.75))
    assert "theory is silent" in growth_sentence(diagnosis())
    assert "random weights predict 0.5" in growth_sentence(diagnosis(theory=Theory(growth_exponent=0.5)))


def test_the_picker_holds_every_number_of_every_layer():
    d = diagnosis()
    page = build([d, d]).render()
    held = re.search(r'id="layer-data">(.*?)</script>', page, re.DOTALL)[1]
    rows = [{words.column(key): value for key, value in row.items()} for row in plain(d.layers)]
    assert json.loads(held) == [rows, rows]
    assert page.count("<option value=") >= 2 * 5
    assert "my<b>model" not in page
    assert "my&lt;b&gt;model, layer 4" in page


def test_several_models_are_laid_side_by_side_and_one_is_not():
    assert "Side by side" not in build([diagnosis()]).render()
    both = build([diagnosis("first"), diagnosis("second", notes=("read twice",))]).render()
    assert "Side by side" in both
    assert "2 models on the same text" in both
    assert "Note: read twice" in both
    assert "No fault was seen" in both or "Healthy" in both
