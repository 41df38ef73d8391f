"""The open half: faults that whoever writes the rules may look at. Same protocol as the half that is set aside."""

from __future__ import annotations

import torch

from .anatomy import gain, set_gain
from .protocol import Dice, Fault, Patient, Planted


def attention_gain_times_thirty(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    norm = patient.body.layers[layer].attention_norms[0]
    set_gain(norm, gain(norm) * 30)
    return Planted(f"the gain of the first attention norm of layer {layer} times 30", (layer,))


@torch.no_grad()
def ffn_output_zero(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in patient.body.layers[layer].fall:
        matrix.zero_()
    return Planted(f"the FFN of layer {layer} writes nothing", (layer,))


FAULTS: tuple[Fault, ...] = (
    Fault("attention gain x30", "weights", attention_gain_times_thirty, accepted=("branches", "attention", "heads")),
    Fault("FFN output zero", "branches", ffn_output_zero, accepted=("weights",)),
)
