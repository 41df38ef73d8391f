"""Training that went wrong late: the optimizer, its groups, its state, its labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..backbones import masked
from ..protocol import Dice, Fault, Patient, Planted
from .tools import UNTIED, Lesson, school


def go_on(patient: Patient, lesson: Lesson) -> None:
    school(patient.model, patient.kind, lesson)


def parameters_of(*modules: nn.Module) -> tuple[nn.Parameter, ...]:
    return tuple(parameter for module in modules for parameter in module.parameters())


def attention_too_fast(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 2))
    fast = parameters_of(*(linear for index in layers for linear in patient.body.layers[index].projections))
    go_on(patient, Lesson(20, fast=fast, fast_rate=9e-3))
    return Planted(f"20 steps in which the attention of the layers {list(layers)} had 30 times the rate", layers)


def head_too_fast(patient: Patient, dice: Dice) -> Planted:
    go_on(patient, Lesson(15, fast=(patient.body.head.weight,), fast_rate=dice.choice((1e-2, 2e-2))))
    return Planted("15 steps in which the head had more than 30 times the rate")


def exploded_state(patient: Patient, dice: Dice) -> Planted:
    layer, factor = dice.layer(patient), dice.choice((15.0, 30.0))
    mine = {id(p) for p in patient.body.stack[layer].parameters()}

    def explode(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 8:
            for parameter, state in optimizer.state.items():
                if id(parameter) in mine:
                    state["exp_avg"].mul_(factor)

    go_on(patient, Lesson(16, rate=5e-4, before=explode))
    return Planted(
        f"Adam's first moment of layer {layer} came back {factor:g} times too large; 8 steps later", (layer,)
    )


def one_layer_climbs(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    mine = parameters_of(patient.body.stack[layer])

    def negate(step: int, optimizer: torch.optim.Optimizer) -> None:
        for parameter in mine:
            if parameter.grad is not None:
                parameter.grad.neg_()

    go_on(patient, Lesson(20, rate=1e-3, before=negate))
    return Planted(f"20 steps in which layer {layer} climbed while the others went down", (layer,))


def noise_batches(patient: Patient, dice: Dice) -> Planted:
    count = dice.integer(1, 4)
    generator = torch.Generator().manual_seed(dice.integer(0, 1000))
    go_on(patient, Lesson(count, rate=1e-3, text=lambda step: torch.randint(0, 256, (4, 129), generator=generator)))
    return Planted(f"{count} batches of a corrupted file (random bytes), at a rate of 0.001")


def smoothed_labels(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.2, 0.4))

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        if kind == "encoder":
            inputs, hidden = masked(tokens[:, :-1], generator)
            return cross_entropy(model(inputs).logits[hidden], tokens[:, :-1][hidden], label_smoothing=share)
        logits = model(tokens[:, :-1]).logits
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=share)

    go_on(patient, Lesson(30, rate=1e-3, loss=loss))
    return Planted(f"30 steps with {share:.0%} of the labels' weight spread over all tokens")


def sign_steps(patient: Patient, dice: Dice) -> Planted:
    """Adam's second moment was reset to ones times 1e-16: every gradient, however small, makes a whole step."""
    rate = dice.choice((2e-3, 4e-3))

    def sign(step: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.sign_()

    go_on(patient, Lesson(6, rate=rate, before=sign))
    return Planted(f"6 steps after a restart without warm-up, in which every weight moved by {rate}")


def one_row_only(patient: Patient, dice: Dice) -> Planted:
    """A sampler that returns the same short phrase in most places of every batch."""
    steps = dice.integer(10, 25)

    def text(step: int) -> Tensor:
        whole = Lesson(1).text(step)
        return whole[:, :8].repeat(1, 17)[:, :129]

    go_on(patient, Lesson(steps, rate=1e-3, text=text))
    return Planted(f"{steps} steps on rows that repeat eight bytes: the model learns to look eight back")


ALL = ("loss", "weights", "stream", "attention", "branches", "causal", "embeddings")
HERE = ("branches", "causal", "gradients", "training", "stream")
FAULTS = (
    Fault("attention at thirty times the rate", "weights", attention_too_fast, accepted=("attention", "heads", *HERE)),
    Fault(
        "head at thirty times the rate",
        "embeddings",
        head_too_fast,
        accepted=("loss", "training", "weights"),
        kinds=UNTIED,
    ),
    Fault("Adam's state exploded", "weights", exploded_state, accepted=("attention", *HERE)),
    Fault("one layer climbs", "causal", one_layer_climbs, accepted=("weights", "attention", *HERE)),
    Fault("batches of noise", "training", noise_batches, accepted=ALL),
    Fault(
        "labels smoothed away", "training", smoothed_labels, accepted=("loss", "embeddings", "final_norm", "weights")
    ),
    Fault("restart without warm-up", "training", sign_steps, accepted=ALL),
    Fault("rows that repeat", "training", one_row_only, accepted=("heads", *ALL)),
)
