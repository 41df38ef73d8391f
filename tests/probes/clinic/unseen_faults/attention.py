"""Attention: kernels, caches, masks, positions and parallel plans."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..blind_faults.order import everywhere, mask_by
from ..protocol import CAUSAL, Dice, Fault, Patient, Planted
from .tools import Kept, before_out, behind, keys_of, on_heads

SEES = ("heads", "loss", "causal")


def tail_not_computed(patient: Patient, dice: Dice) -> Planted:
    block = int(dice.choice((24, 48)))

    def cut(states: Tensor) -> Tensor:
        length = states.shape[1]
        whole = torch.arange(length) < length // block * block
        return states * whole[:, None].to(states)

    for layer in patient.body.layers:
        before_out(layer, cut)
    return Planted(f"the attention kernel computes whole blocks of {block} tokens; the rest of the text gets nothing")


def mask_transposed(patient: Patient, dice: Dice) -> Planted:
    mask_by(patient, everywhere(patient), lambda mask: mask.T)
    return Planted("the mask is transposed: every token sees itself and what follows, and nothing before it")


def keys_turned_twice(patient: Patient, dice: Dice) -> Planted:
    """Once before they enter the cache and once when they leave it."""
    body = patient.body
    width = body.head_width
    neighbours = patient.kind == "encoder"
    speeds = 10_000.0 ** (-torch.arange(0, width, 2) / width) if neighbours else body.frequencies[0].clone()

    def turn(keys: Tensor) -> Tensor:
        angles = (torch.arange(keys.shape[1])[:, None] * speeds)[:, None].to(keys)
        one, other = (keys[..., ::2], keys[..., 1::2]) if neighbours else keys.chunk(2, -1)
        turned = (one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin())
        return torch.stack(turned, -1).flatten(-2) if neighbours else torch.cat(turned, -1)

    for layer in body.layers:
        on_heads(keys_of(layer), width, turn)
    return Planted("the rotary positions are applied to the keys twice, to the queries once")


def cache_shared(patient: Patient, dice: Dice) -> Planted:
    """A setting for models that were trained so."""
    count = dice.integer(1, 3)
    layers = tuple(range(patient.depth - count, patient.depth))
    source = patient.body.layers[layers[0] - 1]
    keys, values = Kept(keys_of(source)), Kept(source.value)
    for index in layers:
        behind(keys_of(patient.body.layers[index]), keys.instead_of)
        behind(patient.body.layers[index].value, values.instead_of)
    return Planted(
        f"the layers {list(layers)} read the keys and values of layer {layers[0] - 1} from its cache", layers
    )


def merged_without_transposing(patient: Patient, dice: Dice) -> Planted:
    """[rows, heads, tokens, width] seen as [rows, tokens, heads * width]."""
    heads = patient.body.heads

    def merge(states: Tensor) -> Tensor:
        apart = states.view(*states.shape[:2], heads, -1).transpose(1, 2)
        return apart.reshape(states.shape)

    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        before_out(patient.body.layers[index], merge)
    return Planted(f"in the layers {list(layers)} a reshape joins the heads without the transpose before it", layers)


def lines_are_documents(patient: Patient, dice: Dice) -> Planted:
    """The id that ends a document is the end of a line."""
    ids: list[Tensor] = []
    patient.body.embedding.register_forward_pre_hook(lambda module, args: ids.__setitem__(slice(None), [args[0]]))

    def rule(mask: Tensor) -> Tensor:
        number = (ids[0] == ord("\n")).cumsum(1)
        apart = number[:, :, None] != number[:, None]
        return mask.masked_fill(apart, -1e9)[:, None]

    mask_by(patient, everywhere(patient), rule)
    return Planted("the packing mask takes every line for a document: nobody sees the line before")


def twice_the_heads(patient: Patient, dice: Dice) -> Planted:
    """The matrices fit any number of heads; the number in the file is wrong."""
    config, body, model = patient.model.config, patient.body, patient.model
    width, heads = body.head_width // 2, 2 * body.heads
    speeds = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    config.num_attention_heads = heads
    for layer in body.layers:
        attention: Any = layer.attention
        if patient.kind == "encoder":
            attention.num_attention_heads, attention.attention_head_size = heads, width
        else:
            attention.num_heads, attention.head_dim, attention.scaling = heads, width, width**-0.5
    if patient.kind == "encoder":
        angles = torch.arange(len(body.positions))[:, None] * speeds
        table = torch.cat([angles.sin(), angles.cos()], 1)
        model.roformer.encoder.embed_positions.weight = nn.Parameter(table, requires_grad=False)
    elif patient.kind != "post":
        config.num_key_value_heads, config.head_dim = 2 * body.key_heads, width
        model.model.rotary_emb.inv_freq = speeds
    return Planted(f"the configuration says {heads} heads; the model was trained with {body.heads}, twice as wide")


FAULTS = (
    Fault("tail of the text not computed", "attention", tail_not_computed, accepted=("branches", *SEES)),
    Fault("mask transposed", "attention", mask_transposed, accepted=SEES, kinds=CAUSAL),
    Fault(
        "keys turned twice",
        "attention",
        keys_turned_twice,
        accepted=("embeddings", *SEES),
        kinds=("pre", "res", "moe", "encoder"),
    ),
    Fault(
        "cache shared with an earlier layer",
        "attention",
        cache_shared,
        accepted=("heads", "branches", "causal", "gradients"),
    ),
    Fault(
        "heads merged without transposing",
        "heads",
        merged_without_transposing,
        accepted=("attention", "branches", "causal", "gradients", "loss"),
    ),
    Fault("lines are documents", "attention", lines_are_documents, accepted=SEES),
    Fault(
        "twice the heads",
        "heads",
        twice_the_heads,
        accepted=("attention", "loss", "causal", "branches"),
        kinds=("pre", "post", "res", "moe", "encoder"),
    ),
)
