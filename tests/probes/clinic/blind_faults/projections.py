"""Conversion of the attention's matrices: heads, groups, shards, biases and head norms that landed in the wrong place."""

from __future__ import annotations

import torch

from ..anatomy import set_gain
from ..protocol import ROTARY, Dice, Fault, Patient, Planted
from .tools import BIASED


@torch.no_grad()
def first_shard_twice(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        for linear in (patient.body.layers[index].key, patient.body.layers[index].value):
            for tensor in (linear.weight, linear.bias):
                if tensor is not None:
                    half = len(tensor) // 2
                    tensor[half:] = tensor[:half].clone()
    return Planted(f"in the layers {list(layers)} the second rank holds the first rank's keys and values", layers)


@torch.no_grad()
def head_norms_not_loaded(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for norm in (layer.attention.q_norm, layer.attention.k_norm):
            set_gain(norm, torch.ones_like(norm.weight))
    return Planted("the gains of the norms on queries and keys were not loaded: they are 1 everywhere")


@torch.no_grad()
def keys_exchanged(patient: Patient, dice: Dice) -> Planted:
    first = dice.integer(0, patient.depth - 1)
    one, other = (patient.body.layers[index].key for index in (first, first + 1))
    kept = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    one.load_state_dict(other.state_dict())
    other.load_state_dict(kept)
    return Planted(f"the keys of the layers {first} and {first + 1} are exchanged", (first, first + 1))


@torch.no_grad()
def biases_on_every_rank(patient: Patient, dice: Dice) -> Planted:
    ranks = dice.choice((8.0, 16.0))
    for layer in patient.body.layers:
        for linear in (layer.out, layer.ffn):
            linear.bias.mul_(ranks)
    return Planted(f"the biases behind attention and FFN are added {ranks:g} times, once per rank")


@torch.no_grad()
def queries_in_another_layout(patient: Patient, dice: Dice) -> Planted:
    """Pairs as halves or as neighbours: the queries were converted, the keys not."""
    body, layers = patient.body, tuple(dice.several(patient.depth, 2))
    width = body.head_width
    order = torch.arange(width).view(2, -1).T.reshape(-1)
    rows = torch.cat([order + head * width for head in range(body.heads)])
    for index in layers:
        query = body.layers[index].query
        query.weight.copy_(query.weight[rows])
        if query.bias is not None:
            query.bias.copy_(query.bias[rows])
    return Planted(f"in the layers {list(layers)} the queries' rotary pairs are laid out unlike the keys'", layers)


@torch.no_grad()
def values_read_backwards(patient: Patient, dice: Dice) -> Planted:
    """Big-endian channels: the value channels of each head in reverse, the output matrix not."""
    body, layer = patient.body, dice.layer(patient)
    value = body.layers[layer].value
    width = body.head_width
    rows = torch.cat([torch.arange(width).flip(0) + head * width for head in range(body.key_heads)])
    value.weight.copy_(value.weight[rows])
    if value.bias is not None:
        value.bias.copy_(value.bias[rows])
    return Planted(f"the value channels of each head of layer {layer} are in reverse order", (layer,))


PART = ("heads", "weights", "branches", "causal", "gradients")
FAULTS = (
    Fault("first shard on both ranks", "heads", first_shard_twice, accepted=("attention", "weights", "causal")),
    Fault(
        "head norms not loaded", "attention", head_norms_not_loaded, accepted=("heads", "loss"), kinds=("peri", "res")
    ),
    Fault("keys of two layers exchanged", "attention", keys_exchanged, accepted=("heads", "weights", "causal")),
    Fault(
        "biases once per rank",
        "branches",
        biases_on_every_rank,
        accepted=("weights", "stream", "causal", "loss"),
        kinds=BIASED,
    ),
    Fault("queries laid out unlike keys", "attention", queries_in_another_layout, accepted=PART, kinds=ROTARY),
    Fault("value channels reversed", "attention", values_read_backwards, accepted=PART),
)
