"""Who sees whom, and where a token believes to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer
from ..protocol import CAUSAL, ROTARY, Dice, Fault, Patient, Planted

Allowed = Callable[[Tensor, Tensor], Tensor]  # (positions of queries [T, 1], of keys [1, T]) -> who may be seen


def wear(patient: Patient, layers: Iterable[Layer], allowed: Allowed) -> None:
    """These layers see what `allowed` says (and, where they are causal, nothing ahead)."""

    def replaced(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        stream = args[0] if args else kwargs["hidden_states"]
        places = torch.arange(stream.shape[1])
        seen = allowed(places[:, None], places[None])
        mask = torch.zeros(seen.shape, dtype=stream.dtype).masked_fill(~seen, -1e9)[None, None]
        if len(args) > 1 and "attention_mask" not in kwargs:
            return (args[0], mask, *args[2:]), kwargs
        return args, {**kwargs, "attention_mask": mask}

    for layer in layers:
        layer.attention.register_forward_pre_hook(replaced, with_kwargs=True)


def past(patient: Patient) -> Allowed:
    causal = patient.kind in CAUSAL
    return lambda query, key: (key <= query) if causal else torch.ones_like(key + query, dtype=torch.bool)


def chunks(patient: Patient, dice: Dice) -> Planted:
    size, usual = int(dice.choice((4, 8))), past(patient)
    wear(patient, patient.body.layers, lambda query, key: usual(query, key) & (query // size == key // size))
    return Planted(f"nobody sees beyond the chunk of {size} tokens it is in")


def blind_to_the_neighbours(patient: Patient, dice: Dice) -> Planted:
    gap, usual = int(dice.choice((2, 3))), past(patient)
    wear(
        patient, patient.body.layers, lambda query, key: usual(query, key) & ((query - key == 0) | (query - key > gap))
    )
    return Planted(f"the {gap} tokens before each are hidden: the window is counted from the wrong end")


def every_other_token(patient: Patient, dice: Dice) -> Planted:
    usual = past(patient)
    wear(patient, patient.body.layers, lambda query, key: usual(query, key) & ((query - key) % 2 == 0))
    return Planted("a strided kernel sees only every other token")


def only_the_first(patient: Patient, dice: Dice) -> Planted:
    layers = dice.several(patient.depth, 2)
    wear(patient, [patient.body.layers[i] for i in layers], lambda query, key: (key < 2) & (query >= 0))
    return Planted(f"the layers {layers} see only the first two tokens", tuple(layers))


def mask_lost_in_some_layers(patient: Patient, dice: Dice) -> Planted:
    layers = dice.several(patient.depth, 3)
    wear(patient, [patient.body.layers[i] for i in layers], lambda query, key: (key + query) >= 0)
    return Planted(f"the layers {layers} lost their causal mask", tuple(layers))


def prompt_taken_for_padding(patient: Patient, dice: Dice) -> Planted:
    share, usual = dice.choice((0.6, 0.85)), past(patient)

    def allowed(query: Tensor, key: Tensor) -> Tensor:
        hidden = key % 16 < int(16 * share)  # of every block of 16
        return usual(query, key) & (~hidden | (query == key))

    wear(patient, patient.body.layers, allowed)
    return Planted(f"{share:.0%} of the tokens are taken for padding and seen by nobody but themselves")


def relabel_positions(patient: Patient, places: Callable[[Tensor], Tensor]) -> None:
    """Position p becomes places(p); tables are rewritten, rotary angles computed anew."""
    body = patient.body
    if body.positions is not None:
        start = 2 if patient.kind == "post" else 0  # OPT's table begins with two unused rows
        table = body.positions[start:]
        table.copy_(table[places(torch.arange(len(table))).clamp(0, len(table) - 1).long()].clone())
        return

    def replaced(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": places(kwargs["position_ids"])}
        return (args[0], places(args[1]), *args[2:]), kwargs

    for name, module in patient.model.named_modules():
        if name.endswith("rotary_emb"):
            module.register_forward_pre_hook(replaced, with_kwargs=True)


def positions_restart(patient: Patient, dice: Dice) -> Planted:
    period = int(dice.choice((4, 7)))
    relabel_positions(patient, lambda place: place % period)
    return Planted(f"positions start again every {period} tokens, as if every few tokens were a document")


def positions_backwards(patient: Patient, dice: Dice) -> Planted:
    relabel_positions(patient, lambda place: 127 - place)
    return Planted("positions are counted from the end")


def positions_stretched(patient: Patient, dice: Dice) -> Planted:
    factor = int(dice.choice((2, 4, 8)))
    relabel_positions(patient, lambda place: place // factor)
    return Planted(f"positions were divided by {factor} for a longer context that the model was not trained for")


def positions_shuffled(patient: Patient, dice: Dice) -> Planted:
    order = torch.randperm(128, generator=dice.generator)
    relabel_positions(patient, lambda place: order[place % 128])
    return Planted("positions are in random order, as after a wrong gather of packed tokens")


SEES = ("heads", "loss", "causal")
WHERE = ("heads", "loss", "causal", "embeddings")
FAULTS = (
    Fault("chunks that do not see each other", "attention", chunks, accepted=SEES),
    Fault("neighbours hidden", "attention", blind_to_the_neighbours, accepted=SEES),
    Fault("every other token", "attention", every_other_token, accepted=SEES),
    Fault("layers see only the start", "attention", only_the_first, accepted=("heads", "causal", "branches", "stream")),
    Fault("mask lost in some layers", "attention", mask_lost_in_some_layers, accepted=SEES, kinds=CAUSAL),
    Fault("tokens taken for padding", "attention", prompt_taken_for_padding, accepted=SEES),
    Fault("positions restart", "attention", positions_restart, accepted=WHERE),
    Fault("positions backwards", "attention", positions_backwards, accepted=WHERE),
    Fault("positions stretched", "attention", positions_stretched, accepted=WHERE, kinds=ROTARY),
    Fault("positions shuffled", "attention", positions_shuffled, accepted=WHERE),
)
