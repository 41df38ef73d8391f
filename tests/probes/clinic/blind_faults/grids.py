"""Numbers stored in few bits: wrong scales, overflow, one grid for all, formats mistaken, a stuck bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..protocol import Dice, Fault, Patient, Planted
from .tools import matrices

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def row_size(matrix: Tensor) -> Tensor:
    return matrix.pow(2).mean(-1, keepdim=True).sqrt() + 1e-12


def scales_of_the_next_layer(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth - 1, 2))
    for index in layers:
        mine, next_ones = (matrices(patient.body.layers[place]) for place in (index, index + 1))
        for matrix, other in zip(mine, next_ones, strict=True):
            matrix.mul_(row_size(other) / row_size(matrix))
    return Planted(f"the layers {list(layers)} have the row scales of the layers behind them", layers)


def wraps_around(patient: Patient, dice: Dice) -> Planted:
    excess, layer = dice.choice((1.8, 2.4)), dice.layer(patient)
    for matrix in matrices(patient.body.layers[layer]):
        scale = matrix.abs().amax() / (127 * excess)
        matrix.copy_(((matrix / scale).round() + 128).remainder(256).sub(128) * scale)
    return Planted(
        f"eight-bit weights of layer {layer} overflow and change sign, {excess} times beyond the range", (layer,)
    )


def coarse_inputs(patient: Patient, dice: Dice) -> Planted:
    levels = dice.choice((2.0, 4.0))

    def coarsen(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        step = args[0].abs().amax() / levels
        return ((args[0] / step).round() * step, *args[1:])

    for layer in patient.body.layers:
        for linear in (layer.query, layer.key, layer.value):
            linear.register_forward_pre_hook(coarsen)
    return Planted(
        f"the attention's inputs have one scale per batch and {2 * levels + 1:g} levels: outliers eat the rest"
    )


def two_bit_cache(patient: Patient, dice: Dice) -> Planted:
    levels = dice.choice((2.0, 3.0))

    def pack(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        low, high = output.amin(-1, keepdim=True), output.amax(-1, keepdim=True)
        step = (high - low).clamp(min=1e-9) / levels
        return ((output - low) / step).round() * step + low

    for layer in patient.body.layers:
        layer.key.register_forward_hook(pack)
        layer.value.register_forward_hook(pack)
    return Planted(f"keys and values are cached on {levels + 1:g} levels per token")


def four_bit_floats(patient: Patient, dice: Dice) -> Planted:
    half = patient.depth // 2
    first = dice.integer(0, half + 1)
    grid = torch.tensor([*(-x for x in reversed(E2M1[1:])), *E2M1])
    for layer in patient.body.layers[first : first + half]:
        for matrix in matrices(layer):
            scale = matrix.abs().amax() / 1.5  # of 6: the peak of another tensor, so that most of the grid is unused
            matrix.copy_(grid[((matrix / scale)[..., None] - grid).abs().argmin(-1)] * scale)
    layers = tuple(range(first, first + half))
    return Planted(
        f"the layers {list(layers)} hold four-bit floats with one scale per matrix, four times too coarse", layers
    )


def another_float(patient: Patient, dice: Dice) -> Planted:
    layer, count = dice.layer(patient), dice.integer(2, 6)
    place = dice.integer(0, 4)
    matrix = patient.body.layers[layer].projections[place].weight.data
    rows = dice.several(len(matrix), count)
    matrix[rows] = matrix[rows].bfloat16().view(torch.int16).view(torch.float16).float()
    name = ("query", "key", "value", "output")[place]
    return Planted(f"{count} rows of the {name} matrix of layer {layer} are bfloat16 read as float16", (layer,))


def outliers_lost(patient: Patient, dice: Dice) -> Planted:
    layers, count = tuple(dice.several(patient.depth, 3)), dice.integer(4, 9)
    for index in layers:
        layer = patient.body.layers[index]
        for matrix in (*(linear.weight.data for linear in layer.projections[:3]), *layer.rise):
            matrix[:, matrix.pow(2).sum(0).topk(count).indices] = 0.0
    return Planted(
        f"in the layers {list(layers)} the {count} largest columns, kept apart in 16 bits, are missing", layers
    )


def rounded_down(patient: Patient, dice: Dice) -> Planted:
    levels, layers = dice.choice((5.0, 7.0)), tuple(dice.several(patient.depth, 3))
    for index in layers:
        for matrix in matrices(patient.body.layers[index]):
            step = matrix.abs().amax(-1, keepdim=True) / levels
            matrix.copy_((matrix / step).floor() * step)
    return Planted(f"the weights of the layers {list(layers)} were rounded down, {levels:g} steps to the peak", layers)


def stuck_bit(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        for matrix in matrices(patient.body.layers[index]):
            matrix.copy_((matrix.contiguous().view(torch.int32) | (1 << 23)).view(torch.float32))
    what = f"the lowest bit of the exponents is stuck in the layers {list(layers)}: half of the weights double"
    return Planted(what, layers)


HERE = ("branches", "causal", "gradients", "stream")
FAULTS = (
    Fault("scales of the next layer", "weights", scales_of_the_next_layer, accepted=("attention", *HERE)),
    Fault("weights wrap around", "weights", wraps_around, accepted=("attention", "heads", *HERE)),
    Fault("attention inputs on one scale", "attention", coarse_inputs, accepted=("branches", "stream", "loss")),
    Fault("cache in two bits", "attention", two_bit_cache, accepted=("heads", "branches", "loss")),
    Fault("four-bit floats too coarse", "weights", four_bit_floats, accepted=("loss", "attention", *HERE)),
    Fault("rows in another float", "weights", another_float, accepted=("attention", "heads", *HERE)),
    Fault("outlier columns missing", "weights", outliers_lost, accepted=("attention", *HERE)),
    Fault("rounded down", "weights", rounded_down, accepted=("attention", "heads", *HERE)),
    Fault("stuck exponent bit", "weights", stuck_bit, accepted=("attention", *HERE)),
)
