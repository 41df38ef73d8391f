"""Low-rank adapters, really learnt on other text, and then merged wrongly."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..anatomy import dissect
from ..protocol import Dice, Fault, Patient, Planted
from .tools import Lesson, plays, school, stranger

RANK = 4


def shouted(step: int) -> Tensor:
    """The plays in capitals: what the adapter is for."""
    text = plays(step)
    return torch.where((text >= 97) & (text <= 122), text - 32, text)


def adapter(patient: Patient, *, steps: int = 30, rate: float = 2e-3) -> list[tuple[Tensor, ...]]:
    """What the projections of each layer learnt from capitals, at rank 4."""
    model = copy.deepcopy(patient.model)
    body = dissect(model, patient.kind)
    learners: tuple[nn.Parameter, ...] = tuple(item.weight for layer in body.layers for item in layer.projections)
    school(model, patient.kind, Lesson(steps, rate, text=shouted), learners=learners)
    return [
        tuple(
            low_rank(new.weight.detach() - old.weight.detach())
            for new, old in zip(learnt.projections, layer.projections, strict=True)
        )
        for learnt, layer in zip(body.layers, patient.body.layers, strict=True)
    ]


def low_rank(matrix: Tensor) -> Tensor:
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    return (left[:, :RANK] * sizes[:RANK]) @ right[:RANK]


@torch.no_grad()
def merge(patient: Patient, deltas: list[tuple[Tensor, ...]], factor: float) -> None:
    for layer, mine in zip(patient.body.layers, deltas, strict=True):
        for linear, delta in zip(layer.projections, mine, strict=True):
            linear.weight.add_(factor * delta)


def wrong_alpha(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((2.0, 3.0))
    merge(patient, adapter(patient, steps=6, rate=5e-4), factor)
    return Planted(f"an adapter was merged with alpha instead of alpha / rank: {factor:g} times too strong")


def merged_often(patient: Patient, dice: Dice) -> Planted:
    """Each save merged it once more, but only in the layers that this rank held."""
    half = patient.depth // 2
    first, factor = dice.integer(0, half + 1), dice.choice((2.0, 3.0))
    layers = tuple(range(first, first + half))
    deltas = adapter(patient)
    kept = [mine if index in layers else tuple(map(torch.zeros_like, mine)) for index, mine in enumerate(deltas)]
    merge(patient, kept, factor)
    return Planted(f"an adapter was merged {factor:g} times into the layers {list(layers)}, once per save", layers)


def transposed(patient: Patient, dice: Dice) -> Planted:
    factor = 2.0
    deltas = [
        tuple(delta.T if delta.shape[0] == delta.shape[1] else delta for delta in mine) for mine in adapter(patient)
    ]
    merge(patient, deltas, factor)
    return Planted(f"an adapter of scale {factor:g} was merged with its two factors exchanged (where they fit)")


def other_layers(patient: Patient, dice: Dice) -> Planted:
    deltas = adapter(patient)
    merge(patient, deltas[1:] + deltas[:1], 2.0)
    return Planted("an adapter of scale 2 was merged one layer too early")


def other_model(patient: Patient, dice: Dice) -> Planted:
    merge(patient, adapter(stranger(patient)), 3.0)
    return Planted("an adapter of scale 3 that another model had learnt was merged")


def taken_out_of_the_base(patient: Patient, dice: Dice) -> Planted:
    merge(patient, adapter(patient), -1.0)
    return Planted("an adapter was taken out of a base into which it had never been merged")


ALL = ("attention", "heads", "loss", "training", "branches", "causal")
FAULTS = (
    Fault("adapter with wrong alpha", "weights", wrong_alpha, accepted=ALL),
    Fault(
        "adapter merged at every save",
        "weights",
        merged_often,
        accepted=("attention", "heads", "branches", "causal", "gradients", "training"),
    ),
    Fault("adapter merged transposed", "weights", transposed, accepted=ALL),
    Fault("adapter one layer early", "weights", other_layers, accepted=ALL),
    Fault("adapter of another model", "weights", other_model, accepted=ALL),
    Fault("adapter taken out of the base", "weights", taken_out_of_the_base, accepted=ALL),
)
