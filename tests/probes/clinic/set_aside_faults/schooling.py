"""Training that ended badly: a trained model goes on for some steps with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..backbones import MASK, loss_of, masked, optimizer_of, windows
from ..protocol import Dice, Fault, Patient, Planted

Loss = Callable[[nn.Module, Tensor, str, torch.Generator], Tensor]


@dataclass(frozen=True)
class Course:
    steps: int
    rate: float = 2e-3
    text: Callable[[int], Tensor] = lambda step: windows(4, 70_000 + step)
    loss: Loss = loss_of


def attend(patient: Patient, course: Course, *, learners: Iterable[nn.Parameter] | None = None) -> None:
    """In place, from where the model is; only `learners` move."""
    model = patient.model.train()
    moving = {id(p) for p in (model.parameters() if learners is None else learners)}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in moving)
    optimizer = optimizer_of(model, course.rate)
    generator = torch.Generator().manual_seed(3)
    for step in range(course.steps):
        course.loss(model, course.text(step), patient.kind, generator).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.eval()


def other_text(patient: Patient, dice: Dice) -> Planted:
    generator = torch.Generator().manual_seed(dice.integer(0, 1000))
    attend(patient, Course(40, text=lambda step: torch.randint(48, 58, (4, 129), generator=generator)))
    return Planted("40 steps on random digits: the plays are forgotten")


def one_token(patient: Patient, dice: Dice) -> Planted:
    token = 97 + dice.integer(0, 26)
    attend(patient, Course(15, text=lambda step: torch.full((4, 129), token)))
    return Planted("15 steps on a text of one letter")


def wrong_labels(patient: Patient, dice: Dice) -> Planted:
    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        if kind == "encoder":
            inputs, hidden = masked(tokens[:, :-1], generator)
            logits, targets = model(inputs).logits[hidden], tokens[:, :-1][hidden]
        else:
            logits, targets = model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten()
        return cross_entropy(logits, targets[torch.randperm(len(targets), generator=generator)])

    attend(patient, Course(40, loss=loss))
    return Planted("40 steps with the labels of the batch in random order")


def one_step_far_too_far(patient: Patient, dice: Dice) -> Planted:
    rate = dice.choice((0.02, 0.05))
    attend(patient, Course(1, rate=rate))
    return Planted(f"one step at a rate of {rate}: the state of the optimizer was not restored")


def runaway_layer(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    attend(patient, Course(12, rate=0.03), learners=patient.body.stack[layer].parameters())
    return Planted(f"12 steps in which layer {layer} alone moved, at a rate of 0.03", (layer,))


def runaway_gains(patient: Patient, dice: Dice) -> Planted:
    gains = [p for p in patient.model.parameters() if p.dim() == 1]
    attend(patient, Course(8, rate=0.3), learners=gains)
    return Planted("8 steps in which the vectors (gains, biases) moved at a rate of 0.3")


def short_windows(patient: Patient, dice: Dice) -> Planted:
    attend(patient, Course(60, text=lambda step: windows(4, 70_000 + step).reshape(-1)[:512].reshape(-1, 4)))
    return Planted("60 steps on windows of four bytes: what is further away is unlearnt")


def runaway_embeddings(patient: Patient, dice: Dice) -> Planted:
    attend(patient, Course(15, rate=0.05), learners=[patient.body.embedding.weight])
    return Planted("15 steps in which the embeddings alone moved, at a rate of 0.05")


def masks_everywhere(patient: Patient, dice: Dice) -> Planted:
    def hide(step: int) -> Tensor:
        text = windows(4, 70_000 + step)
        hidden = torch.rand(text.shape, generator=torch.Generator().manual_seed(step)) < 0.8
        return text.masked_fill(hidden, MASK)

    attend(patient, Course(40, text=hide))
    return Planted("40 steps on text of which 80 % were replaced by one special token, as input and as label")


ALL = ("loss", "weights", "stream", "attention", "branches", "causal", "embeddings")
FAULTS = (
    Fault("forgot the plays", "training", other_text, accepted=ALL),
    Fault("a text of one letter", "training", one_token, accepted=ALL),
    Fault("labels in random order", "training", wrong_labels, accepted=ALL),
    Fault("one step too far", "training", one_step_far_too_far, accepted=ALL),
    Fault(
        "a layer ran away", "weights", runaway_layer, accepted=("stream", "branches", "causal", "gradients", "training")
    ),
    Fault("gains ran away", "weights", runaway_gains, accepted=(*ALL, "training", "final_norm")),
    Fault("windows of four bytes", "training", short_windows, accepted=("loss", "attention", "heads")),
    Fault("embeddings ran away", "embeddings", runaway_embeddings, accepted=("training", "loss", "stream", "weights")),
    Fault("text that was mostly masked", "training", masks_everywhere, accepted=ALL),
)
