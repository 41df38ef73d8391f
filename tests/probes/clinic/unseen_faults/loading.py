"""Files that were read wrongly: names, layouts, ranks and layer numbers that did not match."""

from __future__ import annotations

import torch
from torch import Tensor

from ..anatomy import gain, set_gain
from ..blind_faults.gains import path_norms
from ..blind_faults.tools import older
from ..protocol import Dice, Fault, Patient, Planted


@torch.no_grad()
def norms_not_loaded(patient: Patient, dice: Dice) -> Planted:
    """The file says gamma and beta, the model says weight and bias."""
    for norm in path_norms(patient):
        set_gain(norm, torch.ones_like(gain(norm)))
        if getattr(norm, "bias", None) is not None:
            norm.bias.zero_()
    return Planted("every norm is as it was built: the file calls its parameters gamma and beta")


def one_layer_late(patient: Patient, dice: Dice) -> Planted:
    """The file counts from one, because it counts the embedding; the last layer finds nothing."""
    stack = patient.body.stack
    states = [{name: tensor.clone() for name, tensor in layer.state_dict().items()} for layer in stack]
    last = {name: tensor.clone() for name, tensor in older(patient, 0).stack[-1].state_dict().items()}
    for layer, state in zip(stack, [*states[1:], last], strict=True):
        layer.load_state_dict(state)
    return Planted("every layer holds the weights of the next one, the last layer its random start")


@torch.no_grad()
def slice_at_its_start(patient: Patient, dice: Dice) -> Planted:
    ranks = 8
    rank = dice.integer(0, ranks)
    for layer, start in zip(patient.body.stack, older(patient, 0).stack, strict=True):
        mine, first = list(layer.parameters()), list(start.parameters())
        flat = torch.cat([tensor.flatten() for tensor in mine])
        size = -(-len(flat) // ranks)
        part = slice(rank * size, (rank + 1) * size)
        flat[part] = torch.cat([tensor.flatten() for tensor in first])[part]
        for tensor, values in zip(mine, flat.split([tensor.numel() for tensor in mine]), strict=True):
            tensor.copy_(values.view_as(tensor))
    return Planted(f"of each layer's flat parameters the slice of rank {rank} of {ranks} is the random start")


@torch.no_grad()
def magnitudes_not_loaded(patient: Patient, dice: Dice) -> Planted:
    """An adapter that keeps directions and magnitudes apart was merged with magnitudes of one."""

    def unit(matrix: Tensor) -> None:
        matrix.div_(matrix.norm(dim=1, keepdim=True).clamp(min=1e-9))

    for layer in patient.body.layers:
        unit(layer.query.weight)
        unit(layer.value.weight)
    return Planted("the rows of all query and value matrices have length one: their magnitudes were not loaded")


HERE = ("branches", "causal", "gradients")
FAULTS = (
    Fault(
        "gamma and beta not loaded",
        "weights",
        norms_not_loaded,
        accepted=("final_norm", "attention", "stream", "loss", "branches", "causal"),
    ),
    Fault(
        "layer numbers off by one",
        "causal",
        one_layer_late,
        accepted=("loss", "weights", "branches", "stream", "gradients", "training"),
    ),
    Fault(
        "one rank's slice at its start", "weights", slice_at_its_start, accepted=("loss", "attention", "heads", *HERE)
    ),
    Fault(
        "magnitudes not loaded",
        "weights",
        magnitudes_not_loaded,
        accepted=("attention", "heads", "loss", "branches", "causal"),
    ),
)
