"""Numbers that lost something on the way: quantisation, pruning, lost bits."""

from __future__ import annotations

from torch import Tensor

from ..anatomy import Layer
from ..protocol import Dice, Fault, Patient, Planted


def matrices(layer: Layer) -> list[Tensor]:
    return [*(linear.weight.data for linear in layer.projections), *layer.rise, *layer.fall]


def zero_point(patient: Patient, dice: Dice) -> Planted:
    layer, offset = dice.layer(patient), dice.choice((1.0, 2.0))
    for matrix in matrices(patient.body.layers[layer]):
        matrix[: matrix.shape[0] // 2].add_(offset * matrix.std())
    return Planted(f"the zero point of half of layer {layer} is off by {offset} standard deviations", (layer,))


def scales_in_another_order(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for matrix in matrices(layer):
            size = matrix.norm(dim=0, keepdim=True).clamp_min(1e-6)
            matrix.mul_(size.flip(1) / size)
    return Planted("the scales of the columns were stored in reverse")


def one_bit(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        for matrix in (*layer.rise, *layer.fall):
            matrix.copy_(matrix.sign() * matrix.abs().mean())
    return Planted("all FFN matrices in one bit, with one scale each")


def sign_lost(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        matrix.abs_()
    return Planted(f"the matrices of layer {layer} lost their signs: read as unsigned", (layer,))


def nibbles(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        even = matrix[:, 0::2].clone()
        matrix[:, 0::2] = matrix[:, 1::2]
        matrix[:, 1::2] = even
    return Planted(f"the halves of every byte were unpacked in the wrong order in layer {layer}", (layer,))


def clipped(patient: Patient, dice: Dice) -> Planted:
    limit = dice.choice((0.3, 0.5))
    for layer in patient.body.layers:
        for matrix in matrices(layer):
            matrix.clamp_(-limit * float(matrix.std()), limit * float(matrix.std()))
    return Planted(f"all matrices clipped at {limit} standard deviations by a bad calibration")


def pruned_upside_down(patient: Patient, dice: Dice) -> Planted:
    """Two of four weights stay, as sparse kernels want it, but the smaller two."""
    layer = dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        fours = matrix.view(matrix.shape[0], -1, 4)
        fours.scatter_(2, fours.abs().topk(2, 2).indices, 0.0)
    return Planted(f"in layer {layer} the larger two of every four weights were pruned", (layer,))


def block_of_zeros(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    part = patient.body.layers[layer]
    start = dice.integer(0, part.out.out_features // 4)
    for matrix in (part.out.weight.data, *part.fall):
        matrix[start : start + matrix.shape[0] * 3 // 4] = 0
    return Planted(f"layer {layer} writes to a quarter of the coordinates only: its file was cut", (layer,))


def rows_repeat(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for matrix in (*patient.body.layers[layer].fall, patient.body.layers[layer].out.weight.data):
        matrix.copy_(matrix[:8].repeat(matrix.shape[0] // 8, 1))
    return Planted(f"a strided copy repeats the first 8 rows of what layer {layer} writes", (layer,))


def noise(patient: Patient, dice: Dice) -> Planted:
    size = dice.choice((0.3, 0.5))
    for layer in patient.body.layers:
        for matrix in matrices(layer):
            matrix.add_(size * matrix.std() * dice.normal(matrix))
    return Planted(f"noise of {size:g} standard deviations on every matrix, as of a broken dequantisation")


PART = ("branches", "causal", "gradients", "stream")
FAULTS = (
    Fault("zero point off", "weights", zero_point, accepted=("attention", "heads", *PART)),
    Fault("column scales reversed", "weights", scales_in_another_order, accepted=("loss", "attention", *PART)),
    Fault("one-bit FFNs", "weights", one_bit, accepted=("loss", *PART)),
    Fault("signs lost", "weights", sign_lost, accepted=PART),
    Fault("nibbles swapped", "causal", nibbles, accepted=("weights", "branches", "gradients")),
    Fault("weights clipped", "weights", clipped, accepted=("loss", "attention", *PART)),
    Fault("pruned upside down", "weights", pruned_upside_down, accepted=("attention", "heads", *PART)),
    Fault("most output rows zero", "weights", block_of_zeros, accepted=("heads", "branches", "causal")),
    Fault("rows repeat", "weights", rows_repeat, accepted=PART),
    Fault("noise on every matrix", "loss", noise, accepted=("weights", "attention", *PART)),
)
