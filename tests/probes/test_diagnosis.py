"""The typed result against files that were written before it had types: they come out exactly as they are."""

import csv
import io
import json
import math
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from normlab.probes.diagnose import diagnose
from normlab.probes.diagnosis import SCHEMA, Diagnosis, table_csv
from normlab.probes.measure.summary import summarise
from normlab.probes.measure.table import LayerRow
from tests.probes.zoo import build, inputs

DOCS = Path(__file__).parents[2] / "docs" / "diagnose"
STORED = [path for path in sorted(DOCS.glob("*.json")) if path.stem != "families"]  # a table of another tool


@pytest.fixture(scope="module")
def found():
    return diagnose(build("llama"), [inputs("llama", batch=4, tokens=32)], lengths=(8, 16))


def test_the_stored_files_are_there():
    assert {path.stem for path in STORED} >= {"minilm", "smollm2"}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_file_comes_out_byte_for_byte(path, tmp_path):
    again = Diagnosis.from_dict(json.loads(path.read_text())).to_json(tmp_path / "again.json")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_summary_follows_from_the_stored_layers(path):
    stored = Diagnosis.from_dict(json.loads(path.read_text()))
    again = summarise(stored.layers, stored.lengths)
    for field in fields(again):
        old, new = getattr(stored.summary, field.name), getattr(again, field.name)
        assert new == old or (math.isnan(new) and math.isnan(old)), field.name


def test_what_is_not_measured_is_absent_and_what_is_no_number_is_null():
    row = LayerRow(0, norm=math.nan, entropy=0.5)
    assert diagnosis_of(row).to_dict()["layers"] == [{"layer": 0, "norm": None, "entropy": 0.5}]
    again = Diagnosis.from_dict(diagnosis_of(row).to_dict()).layers[0]
    assert math.isnan(again.norm)
    assert again.ffn_ratio is None


def diagnosis_of(*rows):
    stored = Diagnosis.from_dict(json.loads(STORED[0].read_text()))
    return replace(stored, layers=rows, schema=SCHEMA)


def test_a_new_file_says_its_schema_and_an_old_one_does_not(found):
    assert found.to_dict()["schema"] == SCHEMA > 1
    old = {key: value for key, value in json.loads(STORED[0].read_text()).items() if key != "schema"}
    assert "schema" not in Diagnosis.from_dict(old).to_dict()
    assert Diagnosis.from_dict(found.to_dict()).to_dict() == found.to_dict()


def test_a_diagnosis_full_of_nan_comes_back_too():
    model = build("llama")
    model.model.layers[1].mlp.down_proj.weight.data[0, 0] = math.nan
    broken = diagnose(model, [inputs("llama", batch=2, tokens=16)])
    assert broken.headline.startswith("Look at layer")
    assert Diagnosis.from_dict(broken.to_dict()).to_dict() == broken.to_dict()


def test_a_result_does_not_change(found):
    with pytest.raises(FrozenInstanceError):
        found.layers[0].norm = 1.0
    with pytest.raises(FrozenInstanceError):
        found.name = "another"


def test_the_csv_has_the_columns_that_were_measured_in_the_order_of_the_row(found):
    rows = list(csv.DictReader(io.StringIO(table_csv([found]))))
    order = ["model", *(field.name for field in fields(LayerRow))]
    assert [name for name in order if name in rows[0]] == list(rows[0])
    assert "homogenisation" not in rows[0]
    assert [float(row["ffn_ratio"]) for row in rows] == [row.ffn_ratio for row in found.layers]
