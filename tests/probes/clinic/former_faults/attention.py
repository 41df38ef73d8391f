"""Attention, heads, masks and positions: conversions between layouts, wrong settings, careless edits of the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer, gain, set_gain
from ..protocol import CAUSAL, Dice, Fault, Patient, Planted

NO_QUERY_NORM = ("pre", "post", "moe", "encoder")


def scale_scores(layer: Layer, factor: float) -> None:
    """The scores times `factor`; behind a norm of the queries, only that norm's gain can do it."""
    norm = getattr(layer.attention, "q_norm", None)
    if isinstance(norm, nn.Module):
        set_gain(norm, gain(norm) * factor)
        return
    layer.query.weight.data.mul_(factor)
    if layer.query.bias is not None:
        layer.query.bias.data.mul_(factor)


def exchange(first: nn.Linear, second: nn.Linear) -> None:
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        kept = one.data.clone()
        one.data.copy_(other.data)
        other.data.copy_(kept)


def scale_missing(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient, inner=False), dice.choice((4.0, 8.0, 16.0))
    scale_scores(patient.body.layers[layer], factor)
    return Planted(f"the scores of layer {layer} are {factor:g} times too large: the scale was forgotten", (layer,))


def scale_twice(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((1 / 4, 1 / 16))
    for layer in patient.body.layers:
        scale_scores(layer, factor)
    return Planted(f"the scores of every layer are {1 / factor:g} times too small: the scale was applied twice")


def flat_layer(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    scale_scores(patient.body.layers[layer], 0.02)
    return Planted(f"the scores of layer {layer} are 50 times too small", (layer,))


def query_and_key_swapped(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient, inner=False)
    exchange(patient.body.layers[layer].query, patient.body.layers[layer].key)
    return Planted(f"query and key matrices of layer {layer} changed places", (layer,))


def key_and_value_swapped(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    exchange(patient.body.layers[layer].key, patient.body.layers[layer].value)
    return Planted(f"key and value matrices of layer {layer} changed places", (layer,))


def heads_rotated(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient, inner=False)
    weight = patient.body.layers[layer].out.weight.data
    weight.copy_(weight.roll(patient.body.head_width, 1))
    return Planted(f"the output matrix of layer {layer} reads each head where its neighbour is", (layer,))


def heads_transposed(patient: Patient, dice: Dice) -> Planted:
    """[heads, width of a head] read as [width of a head, heads], in every layer."""
    body = patient.body
    for layer in body.layers:
        weight = layer.value.weight.data
        weight.copy_(weight.view(-1, body.head_width, weight.shape[1]).transpose(0, 1).reshape_as(weight))
    return Planted("the rows of every value matrix are ordered by coordinate and then by head")


def rotary_layout(patient: Patient, dice: Dice) -> Planted:
    """Halves against pairs: the classic accident between two libraries."""
    body = patient.body
    order = torch.arange(body.head_width).view(-1, 2).T.flatten()
    if patient.kind == "encoder":  # this one rotates neighbours, the others halves
        order = order.argsort()
    for layer in body.layers:
        for linear in (layer.query, layer.key):
            for tensor in linear.parameters():
                rows = tensor.data.view(-1, body.head_width, *tensor.shape[1:])
                rows.copy_(rows[:, order].clone())
    return Planted("queries and keys of every layer have the rotary layout of another library")


def dead_head(patient: Patient, dice: Dice) -> Planted:
    layer, head = dice.layer(patient), dice.integer(0, patient.body.heads)
    patient.body.layers[layer].out.weight.data[:, patient.body.query_rows(head)] = 0
    return Planted(f"head {head} of layer {layer} writes nothing", (layer,))


def twin_heads(patient: Patient, dice: Dice) -> Planted:
    """Head 0 and the last one, which read different keys."""
    layer, body = dice.layer(patient), patient.body
    part, last = body.layers[layer], body.heads - 1
    part.query.weight.data[body.query_rows(last)] = part.query.weight.data[body.query_rows(0)]
    for linear in (part.key, part.value):
        linear.weight.data[body.key_rows(last)] = linear.weight.data[body.key_rows(0)]
    part.out.weight.data[:, body.query_rows(last)] = part.out.weight.data[:, body.query_rows(0)]
    return Planted(f"head {last} of layer {layer} is a copy of head 0", (layer,))


def loud_head(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((10.0, 30.0))
    head = dice.integer(0, patient.body.key_heads)
    part = patient.body.layers[layer]
    part.value.weight.data[patient.body.query_rows(head)] *= factor
    return Planted(f"value head {head} of layer {layer} is {factor:g} times too large", (layer,))


def random_head(patient: Patient, dice: Dice) -> Planted:
    layer, head = dice.layer(patient), dice.integer(0, patient.body.heads)
    part, rows = patient.body.layers[layer], patient.body.query_rows(head)
    old = part.query.weight.data[rows]
    part.query.weight.data[rows] = 6 * old.std() * dice.normal(old)
    return Planted(f"the query of head {head} of layer {layer} is large noise", (layer,))


def wear_mask(patient: Patient, allowed: Callable[[int], Tensor]) -> None:
    """Every attention gets this mask [queries, keys], whatever the model says."""

    def replace_mask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        length = states.shape[1]
        mask = torch.zeros(1, 1, length, length, dtype=states.dtype)
        return args[:1], {**kwargs, "attention_mask": mask.masked_fill(~allowed(length), torch.finfo(states.dtype).min)}

    for layer in patient.body.layers:
        layer.attention.register_forward_pre_hook(replace_mask, with_kwargs=True)


def mask_of_the_other_kind(patient: Patient, dice: Dice) -> Planted:
    if patient.kind == "encoder":
        wear_mask(patient, lambda n: torch.ones(n, n, dtype=torch.bool).tril())
        return Planted("the encoder wears a causal mask")
    wear_mask(patient, lambda n: torch.ones(n, n, dtype=torch.bool))
    return Planted("the causal mask is missing")


def sees_one_ahead(patient: Patient, dice: Dice) -> Planted:
    wear_mask(patient, lambda n: torch.ones(n, n, dtype=torch.bool).tril(1))
    return Planted("the causal mask is off by one: each token sees the next")


def narrow_window(patient: Patient, dice: Dice) -> Planted:
    width = int(dice.choice((1, 2, 3)))
    wear_mask(patient, lambda n: torch.ones(n, n, dtype=torch.bool).tril().triu(1 - width))
    return Planted(f"the sliding window is {width} instead of the whole text")


def no_positions(patient: Patient, dice: Dice) -> Planted:
    for table in patient.body.frequencies:
        table.zero_()
    if patient.body.positions is not None:
        table = patient.body.positions
        table.zero_()
        if patient.kind == "encoder":
            table[:, table.shape[1] // 2 :] = 1  # cosines of angle zero
    return Planted("no positions: their table was never filled")


def wrong_base(patient: Patient, dice: Dice) -> Planted:
    base = dice.choice((20.0, 100.0, 1e6))
    width = patient.body.head_width
    steps = base ** (-torch.arange(0, width, 2) / width)
    for table in patient.body.frequencies:
        table.copy_(steps)
    if patient.kind == "encoder":
        angles = torch.arange(len(patient.body.positions))[:, None] * steps  # type: ignore[arg-type]
        patient.body.positions.copy_(torch.cat([angles.sin(), angles.cos()], 1))  # type: ignore[union-attr]
    return Planted(f"the base of the rotary positions is {base:g} instead of 10000")


def offset_positions(patient: Patient, dice: Dice) -> Planted:
    """A cache that is off by a few tokens: queries stand behind their place."""
    shift, body = int(dice.choice((1, 2, 5))), patient.body
    angle = shift * body.frequencies[0]
    for layer in body.layers:
        rows = layer.query.weight.data.view(body.heads, 2, body.head_width // 2, -1)
        first, second = rows[:, 0].clone(), rows[:, 1].clone()
        cosine, sine = angle.cos()[None, :, None], angle.sin()[None, :, None]
        rows[:, 0], rows[:, 1] = first * cosine - second * sine, second * cosine + first * sine
    return Planted(f"queries stand {shift} tokens behind their place")


POSITIONS = ("loss", "training", "heads")
FAULTS = (
    Fault(
        "score scale missing in a layer",
        "attention",
        scale_missing,
        accepted=("heads", "weights", "causal"),
        abnormal="sharp attention",
    ),
    Fault("score scale twice everywhere", "attention", scale_twice, accepted=("heads", "loss")),
    Fault(
        "one layer attends to everything",
        "attention",
        flat_layer,
        accepted=("heads", "weights", "causal"),
        abnormal="uniform attention",
    ),
    Fault(
        "query and key swapped",
        "attention",
        query_and_key_swapped,
        accepted=("heads", "weights", "causal", "branches"),
        kinds=("post", "encoder"),
    ),
    Fault(
        "key and value swapped", "attention", key_and_value_swapped, accepted=("heads", "weights", "causal", "branches")
    ),
    Fault("heads one place on", "heads", heads_rotated, accepted=("attention", "weights", "causal", "branches")),
    Fault(
        "heads transposed everywhere", "heads", heads_transposed, accepted=("loss", "causal", "branches", "attention")
    ),
    Fault(
        "rotary layout of another library",
        "attention",
        rotary_layout,
        accepted=POSITIONS,
        kinds=("pre", "peri", "moe", "encoder"),
    ),
    Fault(
        "dead head", "heads", dead_head, accepted=("weights", "attention"), abnormal="the head writes exactly nothing"
    ),
    Fault("twin heads", "heads", twin_heads, accepted=("weights", "attention"), abnormal="two heads are equal"),
    Fault("loud head", "heads", loud_head, accepted=("weights", "attention", "branches", "causal", "gradients")),
    Fault(
        "query of a head is noise",
        "heads",
        random_head,
        accepted=("attention", "weights"),
        kinds=NO_QUERY_NORM,
        abnormal="6 times larger",
    ),
    Fault("mask of the other kind", "attention", mask_of_the_other_kind, accepted=("loss", "causal")),
    Fault("mask off by one", "attention", sees_one_ahead, accepted=("loss", "causal"), kinds=CAUSAL),
    Fault("sliding window far too narrow", "attention", narrow_window, accepted=("loss", "heads"), kinds=CAUSAL),
    Fault("no positions", "attention", no_positions, accepted=(*POSITIONS, "embeddings")),
    Fault(
        "wrong rotary base",
        "attention",
        wrong_base,
        accepted=POSITIONS,
        kinds=("pre", "peri", "res", "moe", "encoder"),
    ),
    Fault(
        "position offset",
        "attention",
        offset_positions,
        accepted=(*POSITIONS, "embeddings"),
        kinds=("pre", "moe"),
    ),
)
