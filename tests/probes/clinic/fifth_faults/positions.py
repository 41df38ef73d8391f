"""Positions: turned where nothing should turn, counted wrongly, or taken from two schemes at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer
from ..protocol import CAUSAL, ROTARY, Dice, Fault, Patient, Planted
from ..unseen_faults.tools import behind, on_heads
from .tools import Read

SEES = ("heads", "loss", "causal", "branches")
BLANK = 32


def speeds_of(patient: Patient, layer: Layer) -> Tensor:
    rotary: Any = patient.model.model.rotary_emb
    kind = getattr(layer.attention, "layer_type", None)
    return (rotary.inv_freq if hasattr(rotary, "inv_freq") else getattr(rotary, f"{kind}_inv_freq")).clone()


def values_turned(patient: Patient, dice: Dice) -> Planted:
    """A fused kernel turns all three; RoFormer has a setting for it."""
    for layer in patient.body.layers:
        if patient.kind == "encoder":
            layer.attention.rotary_value = True
            continue
        speeds = speeds_of(patient, layer)

        def turn(values: Tensor, speeds: Tensor = speeds) -> Tensor:
            angles = (torch.arange(values.shape[1])[:, None] * speeds)[:, None].to(values)
            one, other = values.chunk(2, -1)
            return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)

        on_heads(layer.value, patient.body.head_width, turn)
    return Planted("the rotary positions turn the values too, not only queries and keys")


def blanks_not_counted(patient: Patient, dice: Dice) -> Planted:
    """Positions are counted where the mask is one; the mask was made of a padding id that is the blank."""
    read = Read(patient)

    def places() -> Tensor:
        return ((read.tokens != BLANK).cumsum(1) - 1).clamp(min=0)

    def learned(module: Any, args: Any, output: Tensor) -> Tensor:
        return nn.functional.embedding(places() + module.offset, module.weight)

    def rotary(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return (
            ((args[0], places(), *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "position_ids": places()})
        )

    if patient.kind == "post":
        patient.model.model.decoder.embed_positions.register_forward_hook(learned)
    else:
        patient.model.model.rotary_emb.register_forward_pre_hook(rotary, with_kwargs=True)
    return Planted("blanks are taken for padding when positions are counted: they share the place of what was before")


def sines_added(patient: Patient, dice: Dice) -> Planted:
    """The table of the first Transformer, on top of rotary positions."""
    width = patient.body.embedding.embedding_dim
    speeds = 10_000.0 ** (-torch.arange(0, width, 2) / width)

    def add(rows: Tensor) -> Tensor:
        angles = torch.arange(rows.shape[1])[:, None] * speeds
        return rows + torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(rows)

    behind(patient.body.embedding, add)
    return Planted("sines and cosines of the position are added to the embeddings of a model with rotary positions")


FAULTS = (
    Fault("values turned too", "attention", values_turned, accepted=SEES, kinds=ROTARY),
    Fault("blanks not counted", "attention", blanks_not_counted, accepted=("embeddings", *SEES), kinds=CAUSAL),
    Fault(
        "sines added to the embeddings",
        "embeddings",
        sines_added,
        accepted=("stream", "attention", "loss", "branches"),
        kinds=ROTARY,
    ),
)
