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
def test_a_note_says_that_numbers_are_rounded(kind):
    found = diagnose(build("llama").to(kind), inputs("llama"), skips=False, lengths=(8,))
    (note,) = found.notes
    assert f"measured in {str(kind).removeprefix('torch.')}, which rounds to" in note
    assert found.identity_error < 0.05
    assert diagnose(build("llama"), inputs("llama"), skips=False, lengths=(8,)).notes == ()


@pytest.mark.parametrize("kind", HALF, ids=str)
def test_a_dead_branch_is_found_in_half_precision_too(kind):
    model = build("llama")
    torch.nn.init.zeros_(model.model.layers[1].mlp.down_proj.weight)
    half = model.to(kind)
    batch = inputs("llama", batch=4, tokens=32)
    found, copied = (diagnose(each, batch, lengths=(8,)) for each in (half, copy.deepcopy(half).float()))
    assert said(found) == said(copied)
    assert 1 in said(found)["dead_branches"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", HALF, ids=str)
@pytest.mark.parametrize("fault", [None, "attention gain x30", "FFN output zero", "queries zero", "values of rank 2"])
def test_a_trained_model_is_judged_as_its_float32_copy(kind, fault):
    patient = runner.admit(backbones.Backbone(backbones.run_of("pre")))
    if fault is not None:
        torch.manual_seed(0)
        next(each for each in open_faults.FAULTS if each.name == fault).plant(patient, Dice(0))
    half = patient.model.to(kind)
    batches = list(backbones.windows(16, 7, held_out=True)[:, :-1].contiguous().split(8))
    found, copied = (diagnose(each, batches, lengths=(32,)) for each in (half, copy.deepcopy(half).float()))
    assert said(found) == said(copied)
    assert bool(said(found)) is (fault is not None)
    assert found.loss.value == pytest.approx(copied.loss.value, rel=0.01)
