"""Broken conversions: shards, splits, layouts, functions and biases of another library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import hardtanh

from ..anatomy import Layer
from ..protocol import Dice, Fault, Patient, Planted

GROUPED = ("pre", "peri", "res", "moe")


def set_activation(patient: Patient, layer: Layer, function: Callable[[Tensor], Tensor]) -> None:
    """Plain attributes: a function is no module, so it is set past nn.Module."""
    if patient.kind == "post":
        owner, name = layer.module, "activation_fn"
    elif patient.kind == "encoder":
        owner, name = layer.module.intermediate, "intermediate_act_fn"  # type: ignore[assignment]
    elif patient.kind == "moe":
        owner, name = layer.ffn.experts, "act_fn"  # type: ignore[assignment]
    else:
        owner, name = layer.ffn, "act_fn"
    owner._modules.pop(name, None)
    owner.__dict__[name] = function


def wrong_activation(patient: Patient, dice: Dice) -> Planted:
    name, function = (("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("a clip at one", hardtanh))[dice.integer(0, 3)]
    for layer in patient.body.layers:
        set_activation(patient, layer, function)
    return Planted(f"the configuration names another activation: {name}")


def no_activation(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(range(dice.integer(0, 2), patient.depth, 2))
    for layer in layers:
        set_activation(patient, patient.body.layers[layer], lambda x: x)
    return Planted(f"the FFNs of the layers {list(layers)} have no activation", layers)


def groups_tiled(patient: Patient, dice: Dice) -> Planted:
    """Heads 0 1 2 3 of two keys: 0 0 1 1 became 0 1 0 1."""
    body = patient.body
    order = [
        key + group * body.key_heads for key in range(body.key_heads) for group in range(body.heads // body.key_heads)
    ]
    rows = torch.cat([torch.arange(body.heads * body.head_width)[body.query_rows(head)] for head in order])
    for layer in body.layers:
        layer.query.weight.data.copy_(layer.query.weight.data[rows].clone())
        layer.out.weight.data.copy_(layer.out.weight.data[:, rows].clone())
    return Planted("keys are tiled over the heads instead of repeated: most heads read the key of another group")


def keys_averaged(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for linear in (layer.key, layer.value):
            heads = linear.weight.data.view(-1, patient.body.head_width, linear.in_features)
            heads.copy_(heads.mean(0, keepdim=True).expand_as(heads).clone())
    return Planted("keys and values of all heads were averaged into one, without training after it")


def columns_half_a_head_off(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    weight = patient.body.layers[layer].out.weight.data
    weight.copy_(weight.roll(patient.body.head_width // 2, 1))
    return Planted(f"the output matrix of layer {layer} reads the heads half a head further on", (layer,))


def shards_in_the_wrong_order(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in patient.body.layers[layer].fall:
        matrix.copy_(matrix.roll(matrix.shape[1] // 2, 1))
    return Planted(f"the two shards of the FFN's second matrix of layer {layer} changed places", (layer,))


def one_shard_lost(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for matrix in layer.fall:
            matrix[:, matrix.shape[1] // 2 :] = 0
    return Planted("one of two ranks never adds its share of the FFNs")


def summed_twice(patient: Patient, dice: Dice) -> Planted:
    times = dice.choice((2.0, 4.0))
    for layer in patient.body.layers:
        for matrix in (layer.out.weight.data, *layer.fall):
            matrix.mul_(times)
    return Planted(f"every branch is summed over {times:g} ranks that all hold the whole")


def fused_split_wrongly(patient: Patient, dice: Dice) -> Planted:
    """Query, key and value of each head lie together in some files; split as three blocks they are mixed."""
    layer = dice.layer(patient)
    part, width = patient.body.layers[layer], patient.body.head_width
    linears = (part.query, part.key, part.value)
    heads = [linear.weight.data.clone().split(width) for linear in linears]
    mixed = [rows for head in range(len(heads[1])) for kind in heads for rows in kind[head : head + 1]]
    mixed += list(heads[0][len(heads[1]) :])
    joined = torch.cat(mixed)
    for linear, rows in zip(linears, joined.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data.copy_(rows)
    return Planted(f"the fused queries, keys and values of layer {layer} were split in the wrong layout", (layer,))


def tied_layers(patient: Patient, dice: Dice) -> Planted:
    first = patient.body.layers[0]
    for layer in patient.body.layers[1:]:
        layer.query.weight.data.copy_(first.query.weight.data)
        layer.key.weight.data.copy_(first.key.weight.data)
    return Planted("all layers share the queries and keys of the first")


PART = ("branches", "causal", "gradients", "stream")
FAULTS = (
    Fault("another activation", "loss", wrong_activation, accepted=("weights", *PART)),
    Fault("layers without activation", "branches", no_activation, accepted=("causal", "gradients", "stream", "loss")),
    Fault(
        "keys tiled instead of repeated", "heads", groups_tiled, accepted=("attention", "loss", "causal"), kinds=GROUPED
    ),
    Fault("keys and values averaged", "heads", keys_averaged, accepted=("weights", "attention", "loss", "causal")),
    Fault("half a head off", "heads", columns_half_a_head_off, accepted=("weights", "attention", *PART)),
    Fault(
        "shards in the wrong order", "causal", shards_in_the_wrong_order, accepted=("weights", "branches", "gradients")
    ),
    Fault("one shard never added", "weights", one_shard_lost, accepted=("loss", *PART)),
    Fault(
        "branches summed over full copies",
        "branches",
        summed_twice,
        accepted=("loss", "weights", "stream", "causal", "gradients"),
        kinds=("pre", "post", "moe", "encoder"),  # elsewhere a norm behind the branch undoes it
    ),
    Fault("fused projections split wrongly", "attention", fused_split_wrongly, accepted=("heads", "weights", *PART)),
    Fault(
        "queries and keys tied over depth", "weights", tied_layers, accepted=("attention", "heads", "loss", "causal")
    ),
)
