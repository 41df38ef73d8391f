"""The plumbing of the clinic on models of three steps. The clinic itself is `make clinic`."""

from dataclasses import replace

import pytest
import torch

from tests.probes.clinic import anatomy, backbones, blind, open_faults, protocol, report, runner
from tests.probes.clinic.protocol import Accusation, Dice, Exam, Fault, Planted

TINY = {kind: replace(backbones.run_of(kind), steps=3, rows=2) for kind in backbones.KINDS}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NORMLAB_CACHE", str(tmp_path_factory.getbasetemp() / "clinic-cache"))


def tiny(kind: str) -> backbones.Backbone:
    return backbones.Backbone(TINY[kind], 3)


def said(verdict: str, subject: str, *layers: int) -> Accusation:
    return Accusation(verdict, subject, layers, "warn")


def test_a_run_is_trained_once_and_comes_back_as_it_was():
    losses = backbones.ensure(TINY["pre"])
    assert list(losses) == [0, 3]
    stamp = (backbones.folder(TINY["pre"]) / "3.safetensors").stat().st_mtime_ns
    model = backbones.load(tiny("pre"))
    assert (backbones.folder(TINY["pre"]) / "3.safetensors").stat().st_mtime_ns == stamp
    assert backbones.held_out_loss(model, "pre") == pytest.approx(losses[3], abs=1e-5)
    assert losses[3] != losses[0]


@pytest.mark.parametrize("kind", backbones.KINDS)
def test_the_anatomy_names_parts_that_the_output_depends_on(kind):
    model = backbones.build(TINY[kind]).eval()
    body = anatomy.dissect(model, kind)
    ids = backbones.windows(2, 0)[:, :-1]
    assert len(body.layers) == 6
    for part in ("query", "out", "rise", "fall", "attention_norms", "ffn_norms"):
        with torch.no_grad():
            before = model(ids).logits.clone()
            for layer in body.layers:
                for item in (
                    getattr(layer, part) if isinstance(getattr(layer, part), tuple) else (getattr(layer, part),)
                ):
                    tensor = item if isinstance(item, torch.Tensor) else item.weight
                    tensor.mul_(1.5).add_(0.01)
            assert not torch.equal(before, model(ids).logits), part


def test_a_case_is_planted_examined_and_cached():
    fault = next(item for item in open_faults.FAULTS if item.name == "FFN output zero")
    case = runner.Case("open", fault, tiny("pre"))
    first = runner.outcome(case)
    assert first.layers
    assert first.loss_change != 0
    assert not first.refused
    assert runner.outcome(case) == first
    checkup = runner.check_up(tiny("pre"))
    assert checkup == runner.check_up(tiny("pre"))
    shown = report.text(report.Clinic({"open": (first,)}, (checkup,)))
    assert "FFN output zero" in shown
    assert f"{int(first.found)} of 1 cases found" in shown


def test_the_same_case_is_planted_in_the_same_place():
    fault = open_faults.FAULTS[0]
    planted = [fault.plant(runner.admit(tiny("post")), Dice(5)) for _ in range(2)]
    assert planted[0] == planted[1]


def test_what_counts_as_found():
    fault = Fault("f", "weights", lambda patient, dice: Planted(""), accepted=("branches",))
    here = Planted("", (3,))
    right, elsewhere, pointing, everywhere = (
        said("a", "branches", 3),
        said("a", "branches", 1),
        said("b", "gradients", 2, 3),
        said("b", "gradients", 0, 1, 2, 3, 4, 5),
    )
    table = [(right, True, True), (elsewhere, True, False), (pointing, True, False), (everywhere, False, False)]
    for item, found, strict in table:
        assert protocol.is_found((item,), fault, here, 6) is found
        assert protocol.is_found_strictly((item,), fault, here) is strict
    assert not protocol.is_found((), fault, here, 6)


def test_what_the_healthy_twin_is_told_is_no_news():
    old, new = said("a", "stream"), said("a", "stream", 2)
    assert protocol.news(Exam((old, new)), Exam((old,))) == (new,)
    assert protocol.news(Exam((), (old,)), Exam()) == (old,)


def test_a_subject_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="unknown subject 'hats'"):
        Fault("f", "hats", lambda patient, dice: Planted(""))


@pytest.mark.parametrize("half", list(runner.HALVES))
def test_every_fault_has_its_own_name_and_at_least_two_models(half):
    names = [fault.name for fault in runner.HALVES[half]]
    tried = [case.fault.name for case in runner.cases(half)]
    assert all(tried.count(name) >= 2 for name in names)


def test_no_name_is_given_twice_in_a_half():
    for faults in runner.HALVES.values():
        assert len({fault.name for fault in faults}) == len(faults)


def test_a_half_that_is_unseen_is_not_known_and_has_its_own_faults():
    assert set(runner.HALVES) - set(runner.KNOWN) == set(runner.UNSEEN)
    known = {fault.name for half in runner.KNOWN for fault in runner.HALVES[half]}
    assert not known & {fault.name for half in runner.UNSEEN for fault in runner.HALVES[half]}


@pytest.mark.parametrize(
    ("half", "slow"),
    [("set-aside", ("merges", "schooling")), ("blind", ("adapters", "mixtures", "steps"))],
)
def test_every_fault_that_is_set_aside_changes_what_the_model_says(half, slow):
    """On models of three steps; those that need other seeds, older checkpoints or training are left to the clinic."""
    ids = backbones.windows(2, 0)[:, :-1]
    for turn, fault in enumerate(runner.HALVES[half]):
        if fault.plant.__module__.rsplit(".", 1)[1] in slow:
            continue
        patient = runner.admit(tiny(fault.kinds[turn % len(fault.kinds)]))
        with torch.no_grad():
            before = patient.model(ids).logits
            planted = fault.plant(patient, Dice(3))
            after = patient.model(ids).logits
        assert planted.what
        assert all(0 <= layer < patient.depth for layer in planted.layers)
        assert not torch.equal(after, before), fault.name


@pytest.mark.parametrize(
    "variant", [item for item in blind.VARIANTS if item.tolerance < 1e-3], ids=lambda item: item.name
)
def test_the_same_function_in_other_clothes_has_the_same_loss(variant):
    for kind in variant.kinds:
        patient = runner.admit(tiny(kind))
        before = backbones.held_out_loss(patient.model, kind, rows=2)
        variant.change(patient, Dice(3))
        assert backbones.held_out_loss(patient.model, kind, rows=2) == pytest.approx(before, abs=variant.tolerance)
