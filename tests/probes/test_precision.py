"""Half precision: the same verdicts as a float32 copy of the same weights, and a note that says what rounding may do."""

import copy

import pytest
import torch

from normlab.probes.diagnose import diagnose
from tests.probes.clinic import backbones, open_faults, runner
from tests.probes.clinic.protocol import Dice
from tests.probes.zoo import build, inputs

HALF = [torch.bfloat16, torch.float16]


def said(found):
    """Faults and warnings with their layers; notes may turn on the last digit."""
    return {verdict.id: verdict.layers for verdict in found.verdicts if verdict.severity != "note"}


@pytest.mark.parametrize("kind", HALF, ids=str)
def test_a_half_precision_model_is_measured_in_float32_and_left_as_it_was(kind):
    model = build("llama").to(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = diagnose(model, inputs("llama"), skips=False, lengths=(8,))
    name = str(kind).removeprefix("torch.")
    (note,) = found.notes
    assert note.startswith(f"stored in {name} and measured in float32, with the same weights: its loss on")
    assert found.how.dtype == name
    assert found.identity_error < 1e-4
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    assert diagnose(build("llama"), inputs("llama"), skips=False, lengths=(8,)).notes == ()


def test_a_model_that_overflows_is_judged_as_it_runs():
    model = build("llama").to(torch.float16)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(30000)
        model.model.layers[1].mlp.up_proj.weight.mul_(30000)
    found = diagnose(model, inputs("llama"), skips=False, lengths=(8,))
    assert found.verdicts[0].id == "non_finite"
    assert any("measured in float16, which rounds to" in note for note in found.notes)


@pytest.mark.parametrize("kind", HALF, ids=str)
def test_a_dead_branch_is_found_in_half_precision_too(kind):
    model = build("llama")
    torch.nn.init.zeros_(model.model.layers[1].mlp.down_proj.weight)
    half = model.to(kind)
    batch = inputs("llama", batch=4, tokens=32)
    found, copied = (diagnose(each, batch, lengths=(8,)) for each in (half, copy.deepcopy(half).float()))
    assert said(found) == said(copied)
    assert found.verdict("dead_branches").layers == copied.verdict("dead_branches").layers == (1,)


FAULTS = (None, "attention gain x30", "FFN output zero", "queries zero", "values of rank 2", "layer copied")


def judged_alike(backbone, fault, kind):
    patient = runner.admit(backbones.Backbone(backbones.run_of(backbone)))
    if fault is not None:
        torch.manual_seed(0)
        next(each for each in open_faults.FAULTS if each.name == fault).plant(patient, Dice(0))
    half = patient.model.to(kind)
    batches = list(patient.windows.split(8))
    options = {"mask_id": backbones.MASK} if backbone == "encoder" else {}
    found, copied = (diagnose(each, batches, lengths=(32,), **options) for each in (half, copy.deepcopy(half).float()))
    assert said(found) == said(copied)
    assert bool(said(found)) is (fault is not None)
    assert found.loss.value == pytest.approx(copied.loss.value, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HALF, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backbone", backbones.KINDS)
def test_a_trained_model_is_judged_as_its_float32_copy(backbone, fault, kind):
    judged_alike(backbone, fault, kind)
