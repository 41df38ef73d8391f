"""Training that went wrong: a real run goes on from step 300, or starts anew, with one setting out of order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..backbones import build, load, loss_of, optimizer_of, windows
from ..protocol import Dice, Fault, Patient, Planted

START = 300


@dataclass(frozen=True)
class Recipe:
    """How the run goes on; `text(step)` are the windows of a step."""

    steps: int
    rate: float
    decay: float = 0.1
    clip: float = 1.0
    sign: float = 1.0
    text: Callable[[int], Tensor] = lambda step: windows(8, 50_000 + step)
    loss: Callable[[nn.Module, Tensor, str, torch.Generator], Tensor] = loss_of


def go_on(patient: Patient, recipe: Recipe, *, start: int = START) -> None:
    """From the checkpoint of that step (0: from scratch), in place; frozen parameters stay."""
    origin = build(patient.backbone.run) if start == 0 else load(replace(patient.backbone, age=start))
    patient.model.load_state_dict(origin.state_dict())
    model = patient.model.train()
    optimizer = optimizer_of(model, recipe.rate, decay=recipe.decay)
    generator = torch.Generator().manual_seed(0)
    for step in range(recipe.steps):
        loss = recipe.sign * recipe.loss(model, recipe.text(step), patient.kind, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.eval()


def rate_too_high(patient: Patient, dice: Dice) -> Planted:
    rate = dice.choice((0.03, 0.1))
    go_on(patient, Recipe(steps=40, rate=rate, clip=1e9))
    return Planted(f"40 steps at a rate of {rate}, without warm-up and clipping")


def one_batch(patient: Patient, dice: Dice) -> Planted:
    text = windows(2, 77)
    go_on(patient, Recipe(steps=80, rate=3e-3, text=lambda step: text))
    return Planted("80 steps on the same two windows: learnt by heart")


def decay_too_strong(patient: Patient, dice: Dice) -> Planted:
    go_on(patient, Recipe(steps=60, rate=3e-3, decay=20.0))
    return Planted("60 steps with a weight decay of 20")


def ascent(patient: Patient, dice: Dice) -> Planted:
    go_on(patient, Recipe(steps=12, rate=1e-3, sign=-1.0))
    return Planted("12 steps with the sign of the loss reversed")


def labels_shifted(patient: Patient, dice: Dice) -> Planted:
    """Labels shifted twice (by the loader and by the model), or not at all."""
    ahead = int(dice.choice((0, 2)))

    def wrong(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        logits = model(tokens[:, :-1]).logits[:, :-1]
        labels = tokens[:, ahead : ahead + logits.shape[1]]
        return cross_entropy(logits.flatten(0, 1), labels.flatten())

    go_on(patient, Recipe(steps=60, rate=2e-3, loss=wrong))
    return Planted(f"60 steps towards the byte {ahead} places ahead instead of the next")


def only_the_head_learnt(patient: Patient, dice: Dice) -> Planted:
    for parameter in patient.body.stack.parameters():
        parameter.requires_grad_(False)
    go_on(patient, Recipe(steps=150, rate=3e-3), start=0)
    return Planted("every layer was frozen at random weights; embedding and head were trained for 150 steps")


def frozen_layer(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    for parameter in patient.body.stack[layer].parameters():
        parameter.requires_grad_(False)
    go_on(patient, Recipe(steps=200, rate=3e-3 if patient.kind != "post" else 1.5e-3), start=0)
    return Planted(f"layer {layer} was frozen at its random weights through 200 steps", (layer,))


FAULTS = (
    Fault(
        "rate too high",
        "training",
        rate_too_high,
        accepted=("loss", "stream", "weights", "attention", "causal", "branches"),
    ),
    Fault("learnt two windows by heart", "training", one_batch, accepted=("loss",), kinds=("pre", "res", "post")),
    Fault(
        "decay far too strong",
        "training",
        decay_too_strong,
        accepted=("loss", "weights", "branches"),
        kinds=("pre", "moe", "encoder"),
    ),
    Fault(
        "gradient ascent",
        "training",
        ascent,
        accepted=("loss", "stream", "causal", "weights"),
        kinds=("pre", "post", "peri"),
    ),
    Fault(
        "labels shifted wrongly", "training", labels_shifted, accepted=("loss", "causal"), kinds=("pre", "res", "moe")
    ),
    Fault(
        "only the ends learnt",
        "training",
        only_the_head_learnt,
        accepted=("loss", "causal", "weights"),
        kinds=("pre", "post", "res"),
        abnormal="the layers are as they were drawn",
    ),
    Fault(
        "a layer was frozen",
        "weights",
        frozen_layer,
        accepted=("causal", "gradients", "branches", "training"),
        kinds=("pre", "peri", "post"),
        abnormal="its weights are as they were drawn",
    ),
)
