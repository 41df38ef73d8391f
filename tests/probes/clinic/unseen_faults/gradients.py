"""The way back: the same predictions, another gradient. The loss shows nothing; the next run does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..protocol import Dice, Fault, Patient, Planted
from .tools import behind


def detached(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    behind(patient.body.stack[layer], lambda stream: stream.detach())
    return Planted(f"a detach was left behind layer {layer}: nothing up to there can learn", tuple(range(layer + 1)))


class Scaled(torch.autograd.Function):
    """What it is given, and on the way back some multiple of it."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return stream.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream * ctx.factor, None


def wrong_way_back(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((-1.0, 0.0, 16.0))
    behind(patient.body.layers[layer].ffn, lambda stream: Scaled.apply(stream, factor))
    return Planted(f"the kernel of layer {layer}'s FFN returns {factor:g} times its gradient", (layer,))


FAULTS = (
    Fault(
        "detach left in",
        "gradients",
        detached,
        accepted=("training",),
        abnormal="the layers below get no gradient at all",
    ),
    Fault(
        "kernel with a wrong way back",
        "gradients",
        wrong_way_back,
        accepted=("training", "branches"),
        abnormal="the layers up to there learn from a wrong gradient",
    ),
)
