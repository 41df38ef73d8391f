"""The way back: the same predictions, another gradient. The loss shows nothing; the next run does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..blind_faults.tools import BIASED
from ..protocol import Dice, Fault, Patient, Planted
from ..unseen_faults.tools import behind
from .tools import epsilon, finished, norms_of


def scores_without_gradient(patient: Patient, dice: Dice) -> Planted:
    """A block meant for the cache."""
    for layer in patient.body.layers:
        behind(layer.query, lambda states: states.detach())
        behind(layer.key, lambda states: states.detach())
    return Planted("queries and keys are made without a gradient: where to look cannot be learnt any more")


def ranks_not_summed(patient: Patient, dice: Dice) -> Planted:
    """Each rank has some of the heads and of the hidden units; their gradients should meet before the norm."""
    ranks = 2

    def own_part(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        blocked = linear(args[0].detach(), module.weight, module.bias)
        size = output.shape[-1] // ranks
        return torch.cat([output[..., :size], blocked[..., size:]], -1)

    for layer in patient.body.layers:
        for part in (layer.query, layer.key, layer.value):
            part.register_forward_hook(own_part)
    return Planted("of the gradient behind queries, keys and values only the first of two ranks' reaches the stream")


def size_taken_as_constant(patient: Patient, dice: Dice) -> Planted:
    """The second term of a fused kernel's way back is missing."""
    centred = patient.kind in BIASED

    def norm(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        stream = args[0] - args[0].mean(-1, keepdim=True) if centred else args[0]
        unit = stream * (stream.pow(2).mean(-1, keepdim=True) + epsilon(module)).rsqrt().detach()
        value = finished(module, unit)
        if module.weight.requires_grad and torch.is_grad_enabled():
            bias = getattr(module, "bias", None)
            shift = 1.0 if type(module).__name__.startswith("Gemma") else 0.0
            value = unit * (module.weight + shift) + (0.0 if bias is None else bias)
        return output.detach() + (value - value.detach())

    for module in norms_of(patient):
        module.register_forward_hook(norm)
    return Planted("on the way back every norm is a constant factor: the part through its size is missing")


FAULTS = (
    Fault(
        "scores without a gradient",
        "gradients",
        scores_without_gradient,
        accepted=("training", "attention", "heads"),
        abnormal="queries and keys get no gradient at all",
    ),
    Fault(
        "gradients of ranks not summed",
        "gradients",
        ranks_not_summed,
        accepted=("training", "attention"),
        abnormal="everything below learns from a part of the gradient",
    ),
    Fault(
        "norm's size taken as constant",
        "gradients",
        size_taken_as_constant,
        accepted=("training",),
        abnormal="every layer learns from a wrong gradient, which grows with the stream",
    ),
)
