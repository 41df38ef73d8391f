"""Merges: other seeds, other ages, deltas thinned or turned, layers stacked, units matched on one side."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..protocol import Dice, Fault, Patient, Planted
from .tools import matrices, older, rise_linear, stranger


@torch.no_grad()
def ffns_pulled(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.1, 0.2))
    for mine, other in zip(patient.body.layers, stranger(patient).body.layers, strict=True):
        for matrix, theirs in zip((*mine.rise, *mine.fall), (*other.rise, *other.fall), strict=True):
            matrix.lerp_(theirs, share)
    return Planted(f"every FFN was merged with another seed's, {share:.0%} of it, without matching the units")


@torch.no_grad()
def old_attention(patient: Patient, dice: Dice) -> Planted:
    age, half = int(dice.choice((30.0, 100.0))), patient.depth // 2
    first = dice.integer(0, half + 1)
    layers = tuple(range(first, first + half))
    before = older(patient, age)
    for index in layers:
        for linear, stored in zip(
            patient.body.layers[index].projections, before.layers[index].projections, strict=True
        ):
            linear.load_state_dict(stored.state_dict())
    return Planted(f"the attention of the layers {list(layers)} is that of step {age}", layers)


@torch.no_grad()
def old_ends(patient: Patient, dice: Dice) -> Planted:
    age = int(dice.choice((30.0, 100.0)))
    patient.body.embedding.weight.copy_(older(patient, age).embedding.weight)
    return Planted(f"the embedding is that of step {age}, the layers are not")


def deltas(patient: Patient) -> list[tuple[Tensor, Tensor]]:
    """(matrix, what it learnt since step 300)"""
    before = older(patient, 300)
    return [
        (matrix, matrix - stored)
        for mine, old in zip(patient.body.layers, before.layers, strict=True)
        for matrix, stored in zip(matrices(mine), matrices(old), strict=True)
    ]


@torch.no_grad()
def thinned_delta(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.8, 0.9))
    for matrix, delta in deltas(patient):
        kept = (torch.rand(delta.shape, generator=dice.generator) > share) / (1 - share)
        matrix.add_(delta * (kept - 1))
    return Planted(f"what was learnt since step 300 was thinned by {share:.0%} and scaled up, as for small deltas")


@torch.no_grad()
def turned_delta(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.3, 0.5))
    for matrix, delta in deltas(patient):
        matrix.sub_(2 * delta * (torch.rand(delta.shape, generator=dice.generator) < share))
    return Planted(f"of what was learnt since step 300, {share:.0%} have the wrong sign: a vote went wrong")


def stacked(patient: Patient, dice: Dice) -> Planted:
    stack, config = patient.body.stack, patient.model.config
    first = dice.integer(0, patient.depth - 2)
    copies = [copy.deepcopy(stack[index]) for index in (first, first + 1)]
    for place, layer in enumerate(copies):
        stack.insert(first + 2 + place, layer)
    for index, layer in enumerate(stack):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
    config.num_hidden_layers = len(stack)
    if getattr(config, "layer_types", None):
        kinds = config.layer_types
        config.layer_types = kinds[: first + 2] + kinds[first : first + 2] + kinds[first + 2 :]
    what = f"the layers {first} and {first + 1} come twice, one pair after the other: stacked to grow, never healed"
    return Planted(what, tuple(range(first, first + 4)))


@torch.no_grad()
def matched_on_one_side(patient: Patient, dice: Dice) -> Planted:
    index, share = dice.layer(patient), dice.choice((0.3, 0.6))
    layer = patient.body.layers[index]
    per_expert = len(layer.rise) // len(layer.fall)
    for number in range(len(layer.fall)):
        mine = layer.rise[per_expert * number : per_expert * (number + 1)]
        units = len(mine[0])
        moved = torch.tensor(dice.several(units, int(share * units)))
        order = torch.arange(units)
        order[moved] = moved.roll(1)
        for matrix in mine:
            matrix.copy_(matrix[order])
        if patient.kind in ("post", "encoder"):
            bias = rise_linear(layer).bias
            bias.copy_(bias[order])
    return Planted(f"{share:.0%} of the hidden units of layer {index} were matched going in, not coming out", (index,))


@torch.no_grad()
def half_a_swap(patient: Patient, dice: Dice) -> Planted:
    """The attention of two layers is exchanged, their norms and FFNs are not."""
    first = dice.integer(0, patient.depth - 2)
    one, other = patient.body.layers[first], patient.body.layers[first + 2]
    for mine, theirs in zip(one.projections, other.projections, strict=True):
        kept = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
        mine.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(kept)
    return Planted(f"the attention of the layers {first} and {first + 2} is exchanged", (first, first + 2))


HERE = ("branches", "causal", "gradients")
ALL = ("loss", "training", "branches", "causal")
FAULTS = (
    Fault("FFNs pulled to another seed", "weights", ffns_pulled, accepted=ALL),
    Fault("attention of an old checkpoint", "attention", old_attention, accepted=("heads", "weights", *HERE)),
    Fault("embedding of an old checkpoint", "embeddings", old_ends, accepted=("loss", "training", "stream")),
    Fault("delta thinned", "weights", thinned_delta, accepted=("attention", *ALL)),
    Fault("delta turned", "weights", turned_delta, accepted=("attention", *ALL)),
    Fault("layers stacked twice", "causal", stacked, accepted=("weights", "stream", "branches", "gradients")),
    Fault("units matched on one side", "branches", matched_on_one_side, accepted=("weights", "causal", "gradients")),
    Fault("attention of two layers exchanged", "attention", half_a_swap, accepted=("heads", "weights", *HERE)),
)
