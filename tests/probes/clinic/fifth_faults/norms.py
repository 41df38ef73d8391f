"""Norms: of the other branch, over another axis, or of the wrong token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..blind_faults.tools import ROOT
from ..protocol import Dice, Fault, Patient, Planted
from .tools import epsilon, finished

ALL = ("stream", "branches", "loss", "causal", "attention", "final_norm")


@torch.no_grad()
def exchanged(patient: Patient, dice: Dice) -> Planted:
    """`post_attention_layernorm` stands in another place in another family."""
    for layer in patient.body.layers:
        one, other = layer.attention_norms[-1], layer.ffn_norms[0]
        mine, theirs = ([part.clone() for part in norm.parameters()] for norm in (one, other))
        for norm, values in ((one, theirs), (other, mine)):
            for part, value in zip(norm.parameters(), values, strict=True):
                part.copy_(value)
    return Planted("in every layer the norms next to each other, of attention and FFN, hold each other's parameters")


def last_token_only(patient: Patient, dice: Dice) -> Planted:
    """Enough for whoever generates; here somebody reads all tokens."""

    def norm(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.cat([args[0][:, :-1], output[:, -1:]], 1)

    patient.body.final_norm.register_forward_hook(norm)
    return Planted("the final norm sees only the last token of a text; the others go to the head as they are")


def size_of_the_token_before(patient: Patient, dice: Dice) -> Planted:
    """A kernel that reads its buffer of sizes one place off."""

    def norm(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        sizes = (args[0].pow(2).mean(-1, keepdim=True) + epsilon(module)).sqrt()
        return finished(module, args[0] / sizes.roll(1, 1))

    patient.body.final_norm.register_forward_hook(norm)
    return Planted("the final norm divides every token by the size of the one before")


def over_the_other_axis(patient: Patient, dice: Dice) -> Planted:
    """OLMo's norms of queries and keys see all heads at once, Gemma's one head."""

    def norm(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if patient.kind == "peri":  # [rows, heads, tokens, width]
            unit = args[0] * (args[0].pow(2).mean((1, 3), keepdim=True) + epsilon(module)).rsqrt()
        else:
            heads = args[0].unflatten(-1, (-1, patient.body.head_width))
            unit = (heads * (heads.pow(2).mean(-1, keepdim=True) + epsilon(module)).rsqrt()).flatten(-2)
        return finished(module, unit)

    for layer in patient.body.layers:
        layer.attention.q_norm.register_forward_hook(norm)
        layer.attention.k_norm.register_forward_hook(norm)
    return Planted(
        "the norms of queries and keys divide by the size of all heads where it should be one's, or conversely"
    )


FAULTS = (
    Fault(
        "final norm of the last token only",
        "final_norm",
        last_token_only,
        accepted=("loss", "embeddings"),
        kinds=ROOT,
    ),
    Fault(
        "final norm with the size before",
        "final_norm",
        size_of_the_token_before,
        accepted=("loss",),
        kinds=ROOT,
    ),
    Fault("norms of two branches exchanged", "weights", exchanged, accepted=ALL),
    Fault(
        "head norms over the other axis",
        "attention",
        over_the_other_axis,
        accepted=("heads", "loss", "causal"),
        kinds=("peri", "res"),
    ),
)
