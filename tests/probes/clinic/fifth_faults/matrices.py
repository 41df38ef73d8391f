"""Matrices: summed, packed, factored and read in ways that do not match how they were written."""

from __future__ import annotations

import torch
from torch import Tensor

from ..blind_faults.tools import matrices
from ..protocol import Dice, Fault, Patient, Planted

HERE = ("branches", "causal", "loss", "gradients")


def signs_of_singular_vectors(patient: Patient, dice: Dice) -> Planted:
    """The factors come from two decompositions, and each is free to choose signs."""
    for layer in patient.body.layers:
        for matrix in layer.fall:
            left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
            matrix.copy_(left * (sizes * dice.normal(sizes).sign()) @ right)
    return Planted("the second matrix of each FFN was put together from factors whose signs do not match")


def interleaved(patient: Patient, dice: Dice) -> Planted:
    """Stored row by row in turns, read as two halves."""
    for layer in patient.body.layers:
        for gate, up in zip(layer.rise[::2], layer.rise[1::2], strict=True):
            first, last = torch.stack([gate, up], 1).flatten(0, 1).chunk(2)
            gate.copy_(first)
            up.copy_(last)
    return Planted("gate and up were stored in turns, row by row, and are read as a first and a second half")


def retiled(matrix: Tensor, side: int = 16) -> Tensor:
    """Tiles that were written column by column, read row by row."""
    tall, wide = (length // side for length in matrix.shape)
    tiles = matrix.view(tall, side, wide, side).permute(2, 0, 1, 3).reshape(tall, wide, side, side)
    return tiles.permute(0, 2, 1, 3).reshape(matrix.shape)


def tiles_in_wrong_order(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient, inner=False)
    for matrix in (*patient.body.layers[layer].rise, *patient.body.layers[layer].fall):
        matrix.copy_(retiled(matrix.clone()))
    return Planted(f"the FFN of layer {layer} was packed in tiles for a kernel and read in the wrong order", (layer,))


def one_element_late(patient: Patient, dice: Dice) -> Planted:
    """An offset in the header of a file that holds two layers."""
    first = dice.integer(0, patient.depth - 1)
    layers = (first, first + 1)
    for index in layers:
        for matrix in matrices(patient.body.layers[index]):
            matrix.copy_(matrix.flatten().roll(1).view_as(matrix))
    return Planted(f"the matrices of the layers {list(layers)} were read from one element too early", layers)


FAULTS = (
    Fault(
        "signs of singular vectors lost",
        "branches",
        signs_of_singular_vectors,
        accepted=("weights", "stream", "experts", *HERE[1:]),
    ),
    Fault(
        "gate and up interleaved",
        "branches",
        interleaved,
        accepted=("weights", "experts", *HERE[1:]),
        kinds=("pre", "peri", "res", "moe"),
    ),
    Fault("tiles in the wrong order", "weights", tiles_in_wrong_order, accepted=("experts", *HERE)),
    Fault("read one element early", "weights", one_element_late, accepted=("attention", "heads", *HERE)),
)
