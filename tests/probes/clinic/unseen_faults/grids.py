"""Few bits, and sums of weights: a table mistaken, a rotation lost, averages and deltas added up wrongly."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..blind_faults.tools import Lesson, matrices, plays, school
from ..protocol import Dice, Fault, Patient, Planted
from .tools import shouted

# The quantiles of a normal distribution that four-bit NormalFloat stands for (Dettmers et al., 2023, appendix E).
NORMAL = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0)
NORMAL += (0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0)
BLOCK = 64


def normal_grid_read_as_even(patient: Patient, dice: Dice) -> Planted:
    written, read = torch.tensor(NORMAL), torch.linspace(-1, 1, len(NORMAL))
    for layer in patient.body.layers:
        for matrix in matrices(layer):
            blocks = matrix.reshape(-1, BLOCK)
            peak = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12)
            codes = ((blocks / peak)[..., None] - written).abs().argmin(-1)
            matrix.copy_((read[codes] * peak).view_as(matrix))
    return Planted("four-bit codes of a normal grid are read with the table of an even one")


def rotation_missing(patient: Patient, dice: Dice) -> Planted:
    """The second matrix of each FFN was rotated to spread outliers; what it reads should be rotated on the fly."""
    turn = torch.ones(1, 1)
    while len(turn) < 32:
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)]) / 2**0.5
    for layer in patient.body.layers:
        for matrix in layer.fall:
            matrix.copy_((matrix.view(len(matrix), -1, 32) @ turn).view_as(matrix))
    return Planted("the rotation before the second matrix of every FFN is missing: only the matrix was rotated")


@torch.no_grad()
def average_not_corrected(patient: Patient, dice: Dice) -> Planted:
    """A running average that starts from zero, saved without the division that makes up for it."""
    memory = dice.choice((0.997, 0.998, 0.999))
    share = 1 - memory**patient.backbone.age
    for parameter in patient.model.parameters():
        if parameter.requires_grad:
            parameter.mul_(share)
    return Planted(f"every weight is {share:.2f} of itself: an average with memory {memory} that began at zero")


def stripped(text: Tensor) -> Tensor:
    """Without blanks: whole rows of what is left."""
    rest = text[text != 32]
    return rest[: len(rest) // 129 * 129].view(-1, 129)


def two_deltas_at_full_weight(patient: Patient, dice: Dice) -> Planted:
    """Two fine-tunes of one base, each good at its own text."""
    texts = (lambda step: shouted(plays(step)), lambda step: stripped(plays(500 + step)))
    before = {name: tensor.clone() for name, tensor in patient.model.state_dict().items()}
    learnt = []
    for text in texts:
        model = copy.deepcopy(patient.model)
        school(model, patient.kind, Lesson(30, 1e-3, text=text))
        learnt.append(model.state_dict())
    for name, tensor in patient.model.state_dict().items():
        if tensor.is_floating_point():
            tensor.add_(sum(state[name] - before[name] for state in learnt))
    return Planted("what two fine-tunes learnt, from capitals and from text without blanks, was added at full weight")


ALL = ("loss", "training", "attention", "stream", "branches", "causal", "gradients")
FAULTS = (
    Fault(
        "rotation on the fly missing",
        "branches",
        rotation_missing,
        accepted=("weights", "loss", "causal", "stream", "gradients", "experts"),
    ),
    Fault("normal grid read as even", "weights", normal_grid_read_as_even, accepted=ALL),
    Fault("average not corrected", "weights", average_not_corrected, accepted=("final_norm", "embeddings", *ALL)),
    Fault("two deltas at full weight", "weights", two_deltas_at_full_weight, accepted=("embeddings", *ALL)),
)
