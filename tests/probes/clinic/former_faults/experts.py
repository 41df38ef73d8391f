"""Experts and routers; each fault is tried in the two mixture models of different seeds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..anatomy import Layer
from ..protocol import Dice, Fault, Patient, Planted

MOE = ("moe",)


def router_of(layer: Layer) -> Tensor:
    assert layer.router is not None
    return layer.router


def dead_expert(patient: Patient, dice: Dice) -> Planted:
    layer, expert = dice.layer(patient), dice.integer(0, 4)
    patient.body.layers[layer].fall[expert].zero_()
    return Planted(f"expert {expert} of layer {layer} writes nothing", (layer,))


def equal_experts(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    part = patient.body.layers[layer]
    for expert in range(1, 4):
        part.fall[expert].copy_(part.fall[0])
        part.rise[2 * expert].copy_(part.rise[0])
        part.rise[2 * expert + 1].copy_(part.rise[1])
    return Planted(f"all experts of layer {layer} are copies of the first", (layer,))


def router_picks_the_same(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        router_of(layer).zero_()
    return Planted("every router is zero: the same two experts serve every token")


def router_obsessed(patient: Patient, dice: Dice) -> Planted:
    """The favourite reads the mean of what the router sees, so that almost every token goes there."""
    layer = dice.layer(patient)
    seen: list[Tensor] = []
    handle = patient.body.layers[layer].ffn.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].flatten(0, 1))
    )
    with torch.no_grad():
        patient.model(patient.windows[:4])
    handle.remove()
    mean = seen[0].mean(0)
    expert = dice.integer(0, 4)
    router_of(patient.body.layers[layer])[expert] += 8 * mean / mean.norm()
    return Planted(f"the router of layer {layer} prefers expert {expert} for nearly every token", (layer,))


def router_noise(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((2.0, 5.0))
    for layer in patient.body.layers:
        router = router_of(layer)
        router.add_(factor * router.std() * dice.normal(router))
    return Planted(f"noise of {factor:g} standard deviations on every router")


def experts_permuted(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        router = router_of(layer)
        router.copy_(router.roll(1, 0))
    return Planted("the routers' rows and the experts are in different orders")


def loud_expert(patient: Patient, dice: Dice) -> Planted:
    layer, expert = dice.layer(patient), dice.integer(0, 4)
    patient.body.layers[layer].fall[expert].mul_(12)
    return Planted(f"expert {expert} of layer {layer} writes 12 times too much", (layer,))


FAULTS = (
    Fault(
        "dead expert", "experts", dead_expert, accepted=("weights", "branches"), kinds=MOE, abnormal="it writes nothing"
    ),
    Fault("experts are copies", "experts", equal_experts, accepted=("weights",), kinds=MOE, abnormal="they are equal"),
    Fault("routers zero", "experts", router_picks_the_same, accepted=("weights",), kinds=MOE),
    Fault(
        "router obsessed",
        "experts",
        router_obsessed,
        accepted=("weights",),
        kinds=MOE,
        abnormal="one expert gets nearly all",
    ),
    Fault("router noise", "experts", router_noise, accepted=("weights",), kinds=MOE),
    Fault("experts in another order", "experts", experts_permuted, accepted=("loss", "causal"), kinds=MOE),
    Fault(
        "loud expert",
        "experts",
        loud_expert,
        accepted=("weights", "branches", "causal", "stream", "gradients"),
        kinds=MOE,
    ),
)
