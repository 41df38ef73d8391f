"""Norms: what they average, what they are multiplied with, and the last one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import gain, set_gain
from ..blind_faults.gains import BEFORE, path_norms, standard
from ..blind_faults.tools import BIASED, ROOT
from ..protocol import Dice, Fault, Patient, Planted
from .tools import LEAK, outputs_on

WITH_FINAL = (*ROOT, "encoder")
ALL = ("stream", "branches", "loss", "causal", "attention", "final_norm")


def norms_by_rank(patient: Patient, dice: Dice) -> Planted:
    ranks, centred = int(dice.choice((2, 4, 8))), patient.kind in BIASED

    def local(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        parts = args[0].unflatten(-1, (ranks, -1))
        parts = parts - parts.mean(-1, keepdim=True) if centred else parts
        unit = (parts * (parts.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)
        bias = getattr(module, "bias", None)
        return unit * gain(module) + (0.0 if bias is None else bias)

    for norm in path_norms(patient):
        norm.register_forward_hook(local)
    return Planted(f"each of {ranks} ranks divides its coordinates by their own size: a sum over the ranks is missing")


def smoothed_on_one_side(patient: Patient, dice: Dice) -> Planted:
    """Sizes are moved from what a matrix reads into the matrix, half of the way; here they never arrive."""
    for layer in patient.body.layers:
        readers = ([item.weight for item in layer.projections[:3]], list(layer.rise))
        for norm, matrices in zip((layer.attention_norms[0], layer.ffn_norms[0]), readers, strict=True):
            large = outputs_on(patient, norm, patient.windows[:4]).abs().amax(0)
            weight = torch.stack([matrix.detach().abs().amax(0) for matrix in matrices]).amax(0)
            set_gain(norm, gain(norm) / (large / weight.clamp(min=1e-5)).sqrt().clamp(min=1e-5))
    return Planted("the gains were divided by smoothing factors that the matrices were not multiplied with")


def final_norm_over_the_text(patient: Patient, dice: Dice) -> Planted:
    patient.body.final_norm.register_forward_hook(
        lambda module, args, output: standard(module, args[0], (-2, -1), centred=False)
    )
    return Planted("the final norm divides by the size of the whole text, not of each token")


def root_forgotten(patient: Patient, dice: Dice) -> Planted:
    centred = patient.kind in BIASED

    def divide(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        stream = args[0] - args[0].mean(-1, keepdim=True) if centred else args[0]
        bias = getattr(module, "bias", None)
        unit = stream / (stream.pow(2).mean(-1, keepdim=True) + 1e-6)
        return unit * gain(module) + (0.0 if bias is None else bias)

    patient.body.final_norm.register_forward_hook(divide)
    return Planted("the final norm divides by the mean square and not by its root")


FAULTS = (
    Fault(
        "final norm without a root",
        "final_norm",
        root_forgotten,
        accepted=("loss", "embeddings"),
        kinds=WITH_FINAL,
    ),
    Fault("norms by rank", "stream", norms_by_rank, accepted=ALL),
    Fault("smoothed on one side", "weights", smoothed_on_one_side, accepted=ALL, kinds=BEFORE),
    Fault(
        "final norm over the whole text",
        "final_norm",
        final_norm_over_the_text,
        accepted=("loss",),
        kinds=ROOT,
        abnormal=LEAK,
    ),
)
