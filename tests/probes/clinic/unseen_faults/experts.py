"""Experts and routers. Each of these is tried in two models of the only kind that has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..blind_faults.tools import Lesson, school
from ..protocol import Dice, Fault, Patient, Planted
from .tools import LEAK, behind

ONLY = ("moe",)
Routed = tuple[Tensor, Tensor, Tensor]  # logits, shares, chosen


def balance_bias_ran_away(patient: Patient, dice: Dice) -> Planted:
    """A bias that evens out the load takes part in the choice, not in the shares."""
    size = dice.choice((1.5, 3.0))

    def choose(bias: Tensor) -> Any:
        def hook(module: nn.Module, args: Any, output: Routed) -> Routed:
            logits = output[0]
            chosen = (logits + bias.to(logits)).topk(output[1].shape[-1], -1).indices
            shares = logits.float().softmax(-1).gather(-1, chosen)
            return logits, (shares / shares.sum(-1, keepdim=True)).to(output[1]), chosen

        return hook

    for layer in patient.body.layers:
        layer.ffn.gate.register_forward_hook(choose(size * dice.normal(layer.router[:, 0])))
    return Planted(f"the biases that balance the experts ran away, to about {size:g}")


def routers_learnt_alone(patient: Patient, dice: Dice) -> Planted:
    """Without the balance loss, in a group of parameters with the rate of another run."""
    rate = dice.choice((0.03, 0.1))
    routers = tuple(layer.ffn.gate.weight for layer in patient.body.layers)

    def unbalanced(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        return cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())

    school(patient.model, patient.kind, Lesson(20, loss=unbalanced, fast=routers, fast_rate=rate))
    return Planted(f"20 steps without the balance loss in which the routers moved at a rate of {rate:g}")


def left_sorted(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        ffn = patient.body.layers[index].ffn
        first: list[Tensor] = []

        def keep(module: nn.Module, args: Any, output: Routed, first: list[Tensor] = first) -> None:
            first[:] = [output[2][:, 0]]

        def leave(stream: Tensor, first: list[Tensor] = first) -> Tensor:
            return stream.flatten(0, -2)[first[0].argsort(stable=True)].view_as(stream)

        ffn.gate.register_forward_hook(keep)
        behind(ffn, leave)
    return Planted(f"in the layers {list(layers)} the outputs stay in the order of their experts", layers)


def shares_exchanged(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        layer.ffn.gate.register_forward_hook(lambda module, args, output: (output[0], output[1].flip(-1), output[2]))
    return Planted("the second choice gets the share of the first: shares rise, choices fall")


HERE = ("branches", "causal", "gradients")
FAULTS = (
    Fault(
        "balance biases ran away",
        "experts",
        balance_bias_ran_away,
        accepted=("weights", "loss", "causal", "branches"),
        kinds=ONLY,
    ),
    Fault(
        "routers learnt alone",
        "experts",
        routers_learnt_alone,
        accepted=("training", "weights", "loss", "causal"),
        kinds=ONLY,
    ),
    Fault("outputs left sorted by expert", "experts", left_sorted, accepted=("loss", *HERE), kinds=ONLY, abnormal=LEAK),
    Fault(
        "shares of two experts exchanged", "experts", shares_exchanged, accepted=("loss", "weights", *HERE), kinds=ONLY
    ),
)
