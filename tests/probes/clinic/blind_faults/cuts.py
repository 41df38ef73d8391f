"""Pruning and compression without healing."""

from __future__ import annotations

import torch

from ..protocol import Dice, Fault, Patient, Planted
from .tools import matrices


@torch.no_grad()
def head_everywhere(patient: Patient, dice: Dice) -> Planted:
    head = dice.integer(0, patient.body.heads)
    for layer in patient.body.layers:
        layer.out.weight[:, patient.body.query_rows(head)] = 0.0
    return Planted(f"head {head} was pruned in every layer")


@torch.no_grad()
def heads_of_a_group(patient: Patient, dice: Dice) -> Planted:
    """The queries of some heads are cut, so that they look everywhere alike; their outputs stay."""
    body, layers = patient.body, tuple(dice.several(patient.depth, 3))
    for index in layers:
        rows = body.query_rows(dice.integer(0, body.heads))
        body.layers[index].query.weight[rows] = 0.0
        if body.layers[index].query.bias is not None:
            body.layers[index].query.bias[rows] = 0.0
    return Planted(f"the queries of a head are cut in the layers {list(layers)}: it looks everywhere alike", layers)


def two_of_four(patient: Patient, dice: Dice) -> Planted:
    half = patient.depth // 2
    first, keep = dice.integer(0, half + 1), dice.integer(1, 3)
    layers = tuple(range(first, first + half))
    for index in layers:
        for matrix in matrices(patient.body.layers[index]):
            groups = matrix.view(len(matrix), -1, 4)
            lost = groups.abs().topk(4 - keep, dim=-1, largest=False).indices
            groups.scatter_(-1, lost, 0.0)
    return Planted(f"of every four weights of the layers {list(layers)} only the {keep} largest are left", layers)


def last_layer_off(patient: Patient, dice: Dice) -> Planted:
    count = dice.integer(1, 3)
    config = patient.model.config
    for _ in range(count):
        del patient.body.stack[-1]
    config.num_hidden_layers -= count
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:-count]
    return Planted(f"the last {count} layers were cut off; head and final norm are those of the whole model")


@torch.no_grad()
def channels_cut(patient: Patient, dice: Dice) -> Planted:
    """Rotary pairs i and i + half (or neighbours) of every head, in queries and keys."""
    body = patient.body
    width = body.head_width
    chosen = torch.tensor(dice.several(width // 2, width // 4))
    inside = (
        torch.cat([2 * chosen, 2 * chosen + 1])
        if patient.kind == "encoder"
        else torch.cat([chosen, chosen + width // 2])
    )
    for layer in body.layers:
        for linear, heads in ((layer.query, body.heads), (layer.key, body.key_heads)):
            rows = torch.cat([inside + head * width for head in range(heads)])
            linear.weight[rows] = 0.0
            if linear.bias is not None:
                linear.bias[rows] = 0.0
    return Planted("half of the channels of queries and keys were pruned in every head")


@torch.no_grad()
def width_cut(patient: Patient, dice: Dice) -> Planted:
    body = patient.body
    width = body.embedding.weight.shape[1]
    lost = dice.several(width, max(2, width // 10))
    body.embedding.weight[:, lost] = 0.0
    for layer in body.layers:
        for matrix in (layer.out.weight, *layer.fall):
            matrix[lost] = 0.0
    return Planted(f"{len(lost)} coordinates of the stream were pruned wherever something is written into them")


def cut_at_random(patient: Patient, dice: Dice) -> Planted:
    layer, share = dice.layer(patient), dice.choice((0.4, 0.6))
    for matrix in (*patient.body.layers[layer].rise, *patient.body.layers[layer].fall):
        matrix.mul_(torch.rand(matrix.shape, generator=dice.generator) > share)
    return Planted(f"{share:.0%} of the FFN weights of layer {layer} were pruned at random", (layer,))


HERE = ("branches", "causal", "gradients")
FAULTS = (
    Fault(
        "one head pruned everywhere",
        "heads",
        head_everywhere,
        accepted=("attention", "weights", "causal"),
        abnormal="a quarter of the attention is dead",
    ),
    Fault(
        "queries of heads cut",
        "heads",
        heads_of_a_group,
        accepted=("attention", "weights", "causal"),
        abnormal="these heads no longer choose",
    ),
    Fault("few of every four weights", "weights", two_of_four, accepted=("attention", "heads", "loss", *HERE)),
    Fault("last layers cut off", "causal", last_layer_off, accepted=("loss", "final_norm", "stream", "embeddings")),
    Fault("half of the channels pruned", "attention", channels_cut, accepted=("heads", "weights", "loss")),
    Fault(
        "coordinates of the stream pruned", "stream", width_cut, accepted=("weights", "embeddings", "loss", "branches")
    ),
    Fault("FFN pruned at random", "weights", cut_at_random, accepted=HERE),
)
