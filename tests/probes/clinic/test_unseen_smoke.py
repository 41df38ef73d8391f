"""The half that nobody has seen, on models of three steps: names, kinds, and that each cheap fault applies."""

from dataclasses import replace

import pytest
import torch

from tests.probes.clinic import anatomy, backbones, blind, former, open_faults, set_aside, unseen
from tests.probes.clinic.protocol import Dice, Patient

TINY = {kind: replace(backbones.run_of(kind), steps=3, rows=2) for kind in backbones.KINDS}
LEARN = ("grids", "training")  # rooms whose faults go on learning, or some of them: left to the clinic
CHEAP = [
    fault
    for fault in unseen.FAULTS
    if fault.plant.__module__.rsplit(".", 1)[1] not in LEARN and fault.name != "routers learnt alone"
]
SAME = [variant for variant in unseen.VARIANTS if variant.tolerance < 1e-3]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NORMLAB_CACHE", str(tmp_path_factory.getbasetemp() / "clinic-cache"))


def admit(kind: str) -> Patient:
    backbone = backbones.Backbone(TINY[kind], 3)
    model = backbones.load(backbone)
    return Patient(backbone, model, anatomy.dissect(model, kind), backbones.windows(4, 7)[:, :-1].contiguous())


def test_there_are_forty_faults_and_twelve_variants_with_names_of_their_own():
    names = [fault.name for fault in unseen.FAULTS]
    assert len(names) == len(set(names)) == 40
    assert not set(names) & {fault.name for half in (open_faults, former, set_aside, blind) for fault in half.FAULTS}
    dresses = [variant.name for variant in unseen.VARIANTS]
    assert len(dresses) == len(set(dresses)) == 12
    assert not set(dresses) & {variant.name for variant in blind.VARIANTS}


def test_kinds_exist_and_only_experts_have_one():
    for item in (*unseen.FAULTS, *unseen.VARIANTS):
        assert set(item.kinds) <= set(backbones.KINDS), item.name
        assert len(set(item.kinds)) == len(item.kinds) >= 2 or item.kinds == ("moe",), item.name


@pytest.mark.parametrize("fault", CHEAP, ids=lambda item: item.name)
def test_a_fault_applies_says_so_in_a_sentence_and_changes_something(fault):
    patient = admit(fault.kinds[0])
    with torch.no_grad():
        before = patient.model(patient.windows).logits
    planted = fault.plant(patient, Dice(3))
    with torch.no_grad():
        after = patient.model(patient.windows).logits
    assert len(planted.what.split()) > 4
    assert all(0 <= layer < patient.depth for layer in planted.layers)
    assert torch.equal(before, after) == (fault.subject == "gradients")  # the same predictions, another way back


@pytest.mark.parametrize("variant", SAME, ids=lambda item: item.name)
def test_the_same_function_in_new_clothes_has_the_same_loss(variant):
    for kind in variant.kinds[1::2]:  # faults are tried in the first kind
        patient = admit(kind)
        before = backbones.held_out_loss(patient.model, kind, rows=2)
        variant.change(patient, Dice(3))
        assert backbones.held_out_loss(patient.model, kind, rows=2) == pytest.approx(before, abs=variant.tolerance)
