"""Who sees whom, and where: masks, pages of the cache, rows of the batch, positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer
from ..protocol import CAUSAL, ROTARY, Dice, Fault, Patient, Planted
from .tools import stream_of, with_stream

LEAK = "what is still to come leaks into the prediction"
Rule = Callable[[Tensor], Tensor]  # additive mask [tokens, tokens] -> [tokens, tokens] or [heads, tokens, tokens]


def usual_mask(layer: Layer, kind: str, length: int) -> Tensor:
    """What the healthy model adds to the scores."""
    here = torch.arange(length)
    behind = here[:, None] - here[None, :]
    hidden = torch.zeros_like(behind, dtype=torch.bool) if kind == "encoder" else behind < 0
    if getattr(layer.attention, "is_sliding", False):
        hidden = hidden | (behind >= layer.attention.sliding_window)
    return torch.zeros(length, length).masked_fill(hidden, -1e9)


def mask_by(patient: Patient, layers: tuple[int, ...], rule: Rule) -> None:
    for index in layers:
        layer = patient.body.layers[index]

        def replace(module: nn.Module, args: Any, kwargs: dict[str, Any], layer: Layer = layer) -> Any:
            stream = args[0] if args else kwargs["hidden_states"]
            mask = rule(usual_mask(layer, patient.kind, stream.shape[1]))
            mask = mask[(None,) * (4 - mask.dim())].to(stream)
            return args, {**kwargs, "attention_mask": mask}

        layer.attention.register_forward_pre_hook(replace, with_kwargs=True)


def everywhere(patient: Patient) -> tuple[int, ...]:
    return tuple(range(patient.depth))


def prefix_sees_itself(patient: Patient, dice: Dice) -> Planted:
    length, layers = dice.integer(24, 64), tuple(dice.several(patient.depth, 3))

    def rule(mask: Tensor) -> Tensor:
        mask[:length, :length] = 0.0
        return mask

    mask_by(patient, layers, rule)
    return Planted(f"in the layers {list(layers)} the first {length} tokens see each other: a prefix mask", layers)


def one_head_sees_all(patient: Patient, dice: Dice) -> Planted:
    layer, head = dice.layer(patient), dice.integer(0, patient.body.heads)

    def rule(mask: Tensor) -> Tensor:
        mask = mask.repeat(patient.body.heads, 1, 1)
        mask[head] = 0.0
        return mask

    mask_by(patient, (layer,), rule)
    return Planted(f"head {head} of layer {layer} has no mask", (layer,))


def mask_too_weak(patient: Patient, dice: Dice) -> Planted:
    size, layers = dice.choice((1.0, 3.0)), tuple(dice.several(patient.depth, 3))
    mask_by(patient, layers, lambda mask: mask.clamp(min=-size))
    return Planted(f"in the layers {list(layers)} masked scores get -{size:g} instead of minus infinity", layers)


def page_lost(patient: Patient, dice: Dice) -> Planted:
    first = 16 * dice.integer(1, 5)

    def rule(mask: Tensor) -> Tensor:
        mask[:, first : first + 16] = -1e9
        return mask

    mask_by(patient, everywhere(patient), rule)
    return Planted(f"nobody sees the keys of the positions {first} to {first + 15}: a page of the cache is lost")


def page_repeated(patient: Patient, dice: Dice) -> Planted:
    first, layers = 16 * dice.integer(1, 4), tuple(dice.several(patient.depth, 3))

    def repeat(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept = output.clone()
        for page in range(first, output.shape[1] - 15, 32):
            kept[:, page : page + 16] = output[:, page - 16 : page]
        return kept

    for index in layers:
        patient.body.layers[index].key.register_forward_hook(repeat)
        patient.body.layers[index].value.register_forward_hook(repeat)
    return Planted(f"in the layers {list(layers)} every other page of 16 keys and values holds the page before", layers)


def rows_mixed(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for linear in (patient.body.layers[layer].key, patient.body.layers[layer].value):
        linear.register_forward_hook(lambda module, args, output: output.roll(1, 0))
    return Planted(f"layer {layer} reads the keys and values of another row of the batch", (layer,))


def chunks_exchanged(patient: Patient, dice: Dice) -> Planted:
    layer, chunk = dice.layer(patient), dice.choice((8.0, 32.0))

    def exchange(module: nn.Module, args: Any, output: Any) -> Any:
        stream = stream_of(output)
        length = stream.shape[1]
        order = torch.arange(length)
        partner = order ^ int(chunk)
        order = torch.where(partner < length, partner, order)
        return with_stream(output, stream[:, order])

    patient.body.layers[layer].attention.register_forward_hook(exchange)
    return Planted(
        f"the attention of layer {layer} returns its chunks of {chunk:g} tokens in the wrong order", (layer,)
    )


def positions_stop(patient: Patient, dice: Dice) -> Planted:
    limit = int(dice.choice((64.0, 96.0)))
    table = patient.body.positions
    if table is not None:
        offset = 2 if patient.kind == "post" else 0
        table[offset + limit :] = table[offset + limit].clone()
    else:

        def stop(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            kept = torch.arange(output[0].shape[1]).clamp(max=limit)
            return tuple(part[:, kept] for part in output)

        patient.model.model.rotary_emb.register_forward_hook(stop)
    return Planted(f"every position beyond {limit} counts as {limit}")


def one_pair_in_four(patient: Patient, dice: Dice) -> Planted:
    if patient.kind == "encoder":
        sines, cosines = patient.body.positions.chunk(2, -1)
        sines[:, 2::4], cosines[:, 2::4] = 0.0, 1.0
    for table in patient.body.frequencies:
        table[2::4] = 0.0
    return Planted("one rotary pair in four stands still: a part of the head was left out")


def one_layer_turns_faster(patient: Patient, dice: Dice) -> Planted:
    base, layers = dice.choice((30.0, 300.0)), tuple(dice.several(patient.depth, 2))
    width = patient.body.head_width
    frequencies = base ** (-torch.arange(0, width, 2) / width)

    def turn(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        name = "sinusoidal_pos" if patient.kind == "encoder" else "position_embeddings"
        stream = args[0] if args else kwargs["hidden_states"]
        angles = torch.arange(stream.shape[1])[:, None] * frequencies
        if patient.kind == "encoder":
            return args, {**kwargs, name: torch.cat([angles.sin(), angles.cos()], -1)[None, None].to(stream)}
        whole = torch.cat([angles, angles], -1)[None].to(stream)
        return args, {**kwargs, name: (whole.cos(), whole.sin())}

    for index in layers:
        patient.body.layers[index].attention.register_forward_pre_hook(turn, with_kwargs=True)
    return Planted(f"the layers {list(layers)} use a rotary base of {base:g}, the others their own", layers)


LOCAL = ("heads", "causal", "branches", "gradients")
FAULTS = (
    Fault(
        "prefix sees itself", "attention", prefix_sees_itself, accepted=("heads", "loss"), kinds=CAUSAL, abnormal=LEAK
    ),
    Fault("one head sees all", "attention", one_head_sees_all, accepted=("heads", "loss"), kinds=CAUSAL, abnormal=LEAK),
    Fault("mask too weak", "attention", mask_too_weak, accepted=("heads", "loss"), kinds=CAUSAL, abnormal=LEAK),
    Fault(
        "page of the cache lost",
        "attention",
        page_lost,
        accepted=("heads", "loss"),
        abnormal="an eighth of the text is invisible",
    ),
    Fault("page of the cache repeated", "attention", page_repeated, accepted=LOCAL),
    Fault(
        "rows of the batch mixed",
        "attention",
        rows_mixed,
        accepted=("loss", *LOCAL),
        abnormal="one user's text reaches another's answer",
    ),
    Fault("chunks in the wrong order", "attention", chunks_exchanged, accepted=LOCAL),
    Fault("positions stop", "attention", positions_stop, accepted=("heads", "loss", "embeddings")),
    Fault("one pair in four stands still", "attention", one_pair_in_four, accepted=("heads", "loss"), kinds=ROTARY),
    Fault("two layers turn faster", "attention", one_layer_turns_faster, accepted=LOCAL, kinds=ROTARY),
)
