"""Norms: their gains, what they average over, and the last one."""

from __future__ import annotations

import torch

from ..anatomy import gain, set_gain
from ..protocol import Dice, Fault, Patient, Planted

FREE = ("pre", "res", "moe", "encoder")  # elsewhere the next norm undoes a change of size
WITH_FINAL = ("pre", "peri", "res", "moe", "encoder")


def gain_is_noise(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for norm in patient.body.layers[layer].norms:
        set_gain(norm, dice.normal(gain(norm)))
    return Planted(f"the gains of layer {layer} were drawn from a normal distribution, like matrices", (layer,))


def gains_ramp(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for norm in layer.norms:
            value = gain(norm)
            set_gain(norm, value * torch.linspace(0, 2, len(value)))
    return Planted("all gains rise from nothing to twice their value along the coordinates")


def not_normalised(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((4.0, 8.0))
    for layer in patient.body.layers:
        norm = layer.ffn_norms[0]
        norm.register_forward_hook(lambda module, args, output: factor * args[0] * gain(module))
    return Planted("the norms of the FFNs apply their gain and a constant, and do not normalise")


def statistics_frozen(patient: Patient, dice: Dice) -> Planted:
    size = dice.choice((0.25, 4.0))
    for layer in patient.body.layers:
        layer.norms[0].register_forward_hook(lambda module, args, output: output * size)
    return Planted(f"the first norm of every layer divides by a stored size that is {1 / size:g} times the true one")


def final_norm_twice(patient: Patient, dice: Dice) -> Planted:
    norm = patient.body.final_norm
    assert norm is not None
    forward = norm.forward
    norm.register_forward_hook(lambda module, args, output: forward(output))
    set_gain(norm, gain(norm) * 1.5)
    return Planted("the final norm is applied twice, with its gain half as large again")


def final_gain_uneven(patient: Patient, dice: Dice) -> Planted:
    norm = patient.body.final_norm
    assert norm is not None
    value = gain(norm).clone()
    value[dice.several(len(value), len(value) // 4)] *= dice.choice((6.0, 10.0))
    set_gain(norm, value)
    return Planted("a quarter of the final gain is many times too large")


ALL = ("loss", "branches", "stream", "causal", "attention")
ONE = ("branches", "attention", "heads", "causal", "gradients", "stream")
FAULTS = (
    Fault("gains are noise", "weights", gain_is_noise, accepted=ONE),
    Fault("gains rise along the coordinates", "weights", gains_ramp, accepted=ALL),
    Fault(
        "norms that do not normalise", "branches", not_normalised, accepted=("stream", "causal", "gradients", "weights")
    ),
    Fault(
        "norms of a stored size",
        "branches",
        statistics_frozen,
        accepted=("loss", "attention", "stream", "causal"),
        kinds=FREE,
    ),
    Fault("final norm twice", "final_norm", final_norm_twice, accepted=("loss",), kinds=WITH_FINAL),
    Fault("final gain uneven", "final_norm", final_gain_uneven, accepted=("loss",), kinds=WITH_FINAL),
)
