"""Merges, adapters and mixed checkpoints: weights that were right somewhere else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..anatomy import dissect
from ..backbones import AGES, Backbone, build, load
from ..protocol import Dice, Fault, Patient, Planted


def other_seed(backbone: Backbone) -> Backbone:
    return replace(backbone, run=replace(backbone.run, seed=1 - backbone.run.seed))


def overwrite(target: nn.Module, source: nn.Module) -> None:
    target.load_state_dict({name: tensor.clone() for name, tensor in source.state_dict().items()})


def floats(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def task_vector_again(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((1.0, 1.5, 2.0))
    base = load(replace(patient.backbone, age=300)).state_dict()
    for name, tensor in floats(patient.model).items():
        tensor.add_(factor * (tensor - base[name]))
    return Planted(f"what was learnt since step 300 was added {factor:g} times more")


def adapter_unscaled(patient: Patient, dice: Dice) -> Planted:
    rank, size = int(dice.choice((1, 2, 4))), dice.choice((1.0, 1.5))
    for layer in patient.body.layers:
        for linear in (layer.query, layer.value):
            weight = linear.weight.data
            delta = dice.normal(weight[:, :rank]) @ dice.normal(weight[:rank])
            weight.add_(size * delta * weight.norm() / delta.norm())
    return Planted(f"an adapter of rank {rank} that outweighs the queries and values was merged into every layer")


def adapter_in_one_layer(patient: Patient, dice: Dice) -> Planted:
    layer, size = dice.layer(patient), dice.choice((2.0, 4.0))
    part = patient.body.layers[layer]
    for weight in (part.out.weight.data, *part.fall):
        delta = dice.normal(weight[:, :1]) @ dice.normal(weight[:1])
        weight.add_(size * delta * weight.norm() / delta.norm())
    return Planted(
        f"an adapter of rank 1, {size:g} times the weights, was merged into what layer {layer} writes", (layer,)
    )


def upper_half_grafted(patient: Patient, dice: Dice) -> Planted:
    half = tuple(range(patient.depth // 2, patient.depth))
    other = dissect(load(other_seed(patient.backbone)), patient.kind)
    for layer in half:
        overwrite(patient.body.stack[layer], other.stack[layer])
    return Planted(f"the layers {half[0]} to {half[-1]} come from a model of another seed", half)


def attention_of_another_seed(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    other = dissect(load(other_seed(patient.backbone)), patient.kind)
    for mine, theirs in zip(patient.body.layers[layer].projections, other.layers[layer].projections, strict=True):
        overwrite(mine, theirs)
    return Planted(f"only the attention of layer {layer} comes from a model of another seed", (layer,))


def ffn_behind_the_rest(patient: Patient, dice: Dice) -> Planted:
    age = int(dice.choice((30, 100)))
    old = dissect(load(replace(patient.backbone, age=age)), patient.kind)
    for mine, theirs in zip(patient.body.layers, old.layers, strict=True):
        for target, source in zip((*mine.rise, *mine.fall), (*theirs.rise, *theirs.fall), strict=True):
            target.copy_(source)
    return Planted(f"all FFN matrices were restored from step {age}, the rest from the end")


def average_remembers_the_start(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.2, 0.3, 0.4))
    start = build(patient.backbone.run).state_dict()
    for name, tensor in floats(patient.model).items():
        tensor.copy_((1 - share) * tensor + share * start[name])
    return Planted(f"the running average of the weights still holds {share:.0%} of their random start")


def all_ages_averaged(patient: Patient, dice: Dice) -> Planted:
    ages = [age for age in AGES if 0 < age <= patient.backbone.age]
    states = [load(replace(patient.backbone, age=age)).state_dict() for age in ages]
    for name, tensor in floats(patient.model).items():
        tensor.copy_(torch.stack([state[name] for state in states]).mean(0))
    return Planted(f"every weight is the mean of the checkpoints {ages}, early ones included")


def reversed_layers(patient: Patient, dice: Dice) -> Planted:
    states = [{k: v.clone() for k, v in layer.state_dict().items()} for layer in patient.body.stack]
    for layer, state in zip(patient.body.stack, reversed(states), strict=True):
        layer.load_state_dict(state)
    return Planted("the layers were loaded from the last to the first")


def one_layer_everywhere(patient: Patient, dice: Dice) -> Planted:
    start = dice.integer(1, patient.depth - 3)
    for layer in (start + 1, start + 2):
        overwrite(patient.body.stack[layer], patient.body.stack[start])
    return Planted(f"layers {start + 1} and {start + 2} are copies of layer {start}", (start, start + 1, start + 2))


def sublayers_of_the_neighbour(patient: Patient, dice: Dice) -> Planted:
    layer = dice.integer(1, patient.depth - 1)
    mine, theirs = patient.body.layers[layer], patient.body.layers[layer - 1]
    for target, source in zip((*mine.rise, *mine.fall), (*theirs.rise, *theirs.fall), strict=True):
        target.copy_(source)
    return Planted(f"the FFN of layer {layer} holds the matrices of layer {layer - 1}", (layer - 1, layer))


WHOLE = ("training", "weights", "branches", "causal", "stream", "gradients")
PART = ("branches", "causal", "gradients", "stream")
FAULTS = (
    Fault("task vector added again", "loss", task_vector_again, accepted=(*WHOLE, "attention", "embeddings")),
    Fault("adapter outweighs queries and values", "weights", adapter_unscaled, accepted=("attention", "heads", *PART)),
    Fault("rank-one adapter in one layer", "weights", adapter_in_one_layer, accepted=PART),
    Fault("upper half of another seed", "causal", upper_half_grafted, accepted=("loss", *WHOLE)),
    Fault(
        "attention of another seed",
        "causal",
        attention_of_another_seed,
        accepted=("weights", "attention", "heads", *PART),
    ),
    Fault("FFNs of an old checkpoint", "weights", ffn_behind_the_rest, accepted=("loss", "training", *PART)),
    Fault("average remembers the start", "weights", average_remembers_the_start, accepted=("loss", *WHOLE)),
    Fault("checkpoints of all ages averaged", "loss", all_ages_averaged, accepted=WHOLE),
    Fault("layers in reverse order", "loss", reversed_layers, accepted=(*WHOLE, "attention")),
    Fault("three layers are one", "weights", one_layer_everywhere, accepted=("causal",)),
    Fault("FFN of the layer before", "weights", sublayers_of_the_neighbour, accepted=("causal", "branches")),
)
