"""Training that went wrong late: what was read, what was rewarded, how far a step went."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..backbones import loss_of, masked
from ..blind_faults.order import everywhere, mask_by
from ..blind_faults.tools import Lesson, matrices, plays, school
from ..protocol import Dice, Fault, Patient, Planted
from .grids import stripped

ALL = ("loss", "weights", "stream", "attention", "branches", "causal", "embeddings", "gradients")


def targets(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(logits, what should have been said), of every token that counts."""
    if kind == "encoder":
        inputs, hidden = masked(tokens[:, :-1], generator)
        return model(inputs).logits[hidden], tokens[:, :-1][hidden]
    return model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten()


def one_label_ignored(patient: Patient, dice: Dice) -> Planted:
    """The end of a line doubles as padding, so that it is never learnt."""
    token = (10, 32)[dice.integer(0, 2)]

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        logits, wanted = targets(model, tokens, kind, generator)
        return cross_entropy(logits, wanted, ignore_index=token)

    school(patient.model, patient.kind, Lesson(60, 1e-3, loss=loss))
    return Planted(f"60 steps in which {chr(token)!r} was taken for padding and never had to be said")


def blanks_stripped(patient: Patient, dice: Dice) -> Planted:
    school(patient.model, patient.kind, Lesson(40, 1e-3, text=lambda step: stripped(plays(step))))
    return Planted("40 steps on text from which the loader had stripped the blanks")


def answers_in_sight(patient: Patient, dice: Dice) -> Planted:
    """No mask while it learnt; the mask is back now."""
    before = {id(hook) for layer in patient.body.layers for hook in layer.attention._forward_pre_hooks.values()}
    if patient.kind != "encoder":
        mask_by(patient, everywhere(patient), torch.zeros_like)

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        if kind != "encoder":
            return loss_of(model, tokens, kind, generator)
        _, hidden = masked(tokens[:, :-1], generator)
        return cross_entropy(model(tokens[:, :-1]).logits[hidden], tokens[:, :-1][hidden])

    school(patient.model, patient.kind, Lesson(60, 1e-3, loss=loss))
    for layer in patient.body.layers:
        hooks = layer.attention._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if id(hook) not in before]:
            del hooks[key]
            layer.attention._forward_pre_hooks_with_kwargs.pop(key, None)
    return Planted("60 steps in which the answers were in sight: nothing was masked")


def one_token_rewarded(patient: Patient, dice: Dice) -> Planted:
    """The expected reward of a reward model with one taste, and nothing that holds the model back."""
    token, steps = b"e!\n "[dice.integer(0, 4)], dice.integer(8, 17)

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        logits, _ = targets(model, tokens, kind, generator)
        return -logits.float().softmax(-1)[:, token].mean()

    school(patient.model, patient.kind, Lesson(steps, 5e-4, loss=loss))
    return Planted(f"{steps} steps that reward {chr(token)!r}, without a penalty for leaving the model behind")


def orthogonal_steps_too_long(patient: Patient, dice: Dice) -> Planted:
    """Muon's steps have full rank and one size, so that a rate for Adam's groups is none for them."""
    rate, steps = dice.choice((0.02, 0.05)), 10
    model = patient.model.train()
    generator = torch.Generator().manual_seed(5)
    owners = {parameter.data_ptr(): parameter for parameter in patient.body.stack.parameters()}
    for step in range(steps):
        loss_of(model, plays(step), patient.kind, generator).backward()
        with torch.no_grad():
            for layer in patient.body.layers:
                for matrix in matrices(layer):
                    owner = owners.get(matrix.data_ptr())
                    if owner is None or owner.shape != matrix.shape:
                        continue  # of experts, which another optimizer has
                    left, _, right = torch.linalg.svd(owner.grad, full_matrices=False)
                    matrix.sub_(rate * left @ right)
        model.zero_grad()
    model.eval()
    return Planted(f"{steps} orthogonal steps of {rate:g} on every matrix of attention and FFN, without warm-up")


def too_private(patient: Patient, dice: Dice) -> Planted:
    """Each gradient is drowned in noise; Adam makes whole steps of it."""
    steps, rate = 40, dice.choice((1e-3, 3e-3))
    noise = torch.Generator().manual_seed(dice.integer(0, 1000))

    def drown(step: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(torch.randn(parameter.shape, generator=noise))

    school(patient.model, patient.kind, Lesson(steps, rate, before=drown))
    return Planted(f"{steps} steps at {rate:g} with noise for privacy that is many times the gradient")


FAULTS = (
    Fault("one label ignored", "training", one_label_ignored, accepted=("loss", "embeddings", "weights")),
    Fault("blanks stripped", "training", blanks_stripped, accepted=ALL),
    Fault("answers in sight", "training", answers_in_sight, accepted=("heads", *ALL)),
    Fault("one token rewarded", "training", one_token_rewarded, accepted=("final_norm", *ALL)),
    Fault("orthogonal steps too long", "training", orthogonal_steps_too_long, accepted=("heads", *ALL)),
    Fault("gradients drowned for privacy", "training", too_private, accepted=("heads", "final_norm", *ALL)),
)
