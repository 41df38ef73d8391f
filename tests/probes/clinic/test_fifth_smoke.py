"""The fifth half, on models of three steps: names, kinds, and that each cheap fault applies."""

from dataclasses import replace

import pytest
import torch

from tests.probes.clinic import anatomy, backbones, blind, fifth, former, open_faults, set_aside, unseen
from tests.probes.clinic.protocol import Dice, Patient

TINY = {kind: replace(backbones.run_of(kind), steps=3, rows=2) for kind in backbones.KINDS}
LEARN = ("head of the next token but one", "balance loss too strong")  # they go on learning: left to the clinic
CHEAP = [
    fault
    for fault in fifth.FAULTS
    if fault.plant.__module__.rsplit(".", 1)[1] != "training" and fault.name not in LEARN
]
MASKED = "another id for the mask"  # changes nothing in a text where nothing is hidden
SAME = [variant for variant in fifth.VARIANTS if variant.tolerance < 1e-3]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NORMLAB_CACHE", str(tmp_path_factory.getbasetemp() / "clinic-cache"))


def admit(kind: str) -> Patient:
    backbone = backbones.Backbone(TINY[kind], 3)
    model = backbones.load(backbone)
    return Patient(backbone, model, anatomy.dissect(model, kind), backbones.windows(4, 7)[:, :-1].contiguous())


def test_there_are_thirty_six_faults_and_twelve_variants_with_names_of_their_own():
    names = [fault.name for fault in fifth.FAULTS]
    assert len(names) == len(set(names)) == 36
    earlier = (open_faults, former, set_aside, blind, unseen)
    assert not set(names) & {fault.name for half in earlier for fault in half.FAULTS}
    dresses = [variant.name for variant in fifth.VARIANTS]
    assert len(dresses) == len(set(dresses)) == 12
    assert not set(dresses) & {variant.name for half in (blind, unseen) for variant in half.VARIANTS}


def test_kinds_exist():
    for item in (*fifth.FAULTS, *fifth.VARIANTS):
        assert set(item.kinds) <= set(backbones.KINDS), item.name
        assert len(set(item.kinds)) == len(item.kinds) >= 1, item.name


@pytest.mark.parametrize("fault", CHEAP, ids=lambda item: item.name)
def test_a_fault_applies_says_so_in_a_sentence_and_changes_something(fault):
    patient = admit(fault.kinds[0])
    text = patient.windows.clone()
    if fault.name == MASKED:
        text[:, ::7] = backbones.MASK
    with torch.no_grad():
        before = patient.model(text).logits
    planted = fault.plant(patient, Dice(3))
    with torch.no_grad():
        after = patient.model(text).logits
    assert len(planted.what.split()) > 4
    assert all(0 <= layer < patient.depth for layer in planted.layers)
    if fault.name != "confident tokens leave early":  # nobody is sure after three steps
        assert torch.equal(before, after) == (fault.subject == "gradients")  # the same predictions, another way back


@pytest.mark.parametrize("fault", [item for item in CHEAP if item.subject == "gradients"], ids=lambda item: item.name)
def test_another_way_back_is_another_gradient(fault):
    grads = []
    for sick in (False, True):
        patient = admit(fault.kinds[0])
        if sick:
            fault.plant(patient, Dice(3))
        backbones.loss_of(patient.model, backbones.windows(2, 7), patient.kind, torch.Generator()).backward()
        grads.append(patient.body.embedding.weight.grad)
    assert not torch.allclose(*grads, rtol=1e-3)


@pytest.mark.parametrize("variant", SAME, ids=lambda item: item.name)
def test_the_same_function_in_new_clothes_has_the_same_loss(variant):
    for kind in variant.kinds[1::2] or variant.kinds:  # faults are tried in the first kind
        patient = admit(kind)
        before = backbones.held_out_loss(patient.model, kind, rows=2)
        variant.change(patient, Dice(3))
        assert backbones.held_out_loss(patient.model, kind, rows=2) == pytest.approx(before, abs=variant.tolerance)
