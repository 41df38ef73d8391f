"""Experts and routers. Only one backbone has them: each of these is tried in two models of that kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..anatomy import Layer
from ..protocol import Dice, Fault, Patient, Planted

MOE = ("moe",)


def router_of(layer: Layer) -> Tensor:
    assert layer.router is not None
    return layer.router


def columns_rolled(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        router_of(layer).copy_(router_of(layer).roll(1, 1))
    return Planted("every router reads its coordinates one place off")


def routers_of_the_next_layer(patient: Patient, dice: Dice) -> Planted:
    kept = [router_of(layer).clone() for layer in patient.body.layers]
    for layer, source in zip(patient.body.layers, kept[1:] + kept[:1], strict=True):
        router_of(layer).copy_(source)
    return Planted("every layer has the router of the next one")


def worst_experts(patient: Patient, dice: Dice) -> Planted:
    layers = dice.several(patient.depth, 3)
    for layer in layers:
        router_of(patient.body.layers[layer]).mul_(-1)
    return Planted(f"the routers of the layers {layers} choose the experts that fit least", tuple(layers))


def three_experts_lost(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    part = patient.body.layers[layer]
    for expert in dice.several(len(part.fall), 3):
        part.fall[expert].zero_()
    return Planted(f"three experts of layer {layer} write nothing: their rank did not answer", (layer,))


def experts_of_the_neighbour(patient: Patient, dice: Dice) -> Planted:
    layer = dice.integer(1, patient.depth)
    mine, theirs = patient.body.layers[layer], patient.body.layers[layer - 1]
    for target, source in zip((*mine.rise, *mine.fall), (*theirs.rise, *theirs.fall), strict=True):
        target.copy_(source)
    return Planted(
        f"the experts of layer {layer} are those of layer {layer - 1}, the router is not", (layer - 1, layer)
    )


def weights_not_normalised(patient: Patient, dice: Dice) -> Planted:
    times = dice.choice((0.3, 3.0))

    def scale(module: nn.Module, args: object, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return output[0], output[1] * times, output[2]

    for layer in patient.body.layers:
        layer.ffn.gate.register_forward_hook(scale)  # type: ignore[union-attr, operator]
    return Planted(f"the weights of the chosen experts sum to {times:g} instead of one")


def chosen_at_random(patient: Patient, dice: Dice) -> Planted:
    def shuffle(
        module: nn.Module, args: object, output: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        return output[0], output[1], (output[2] + torch.randint(0, 4, output[2][:, :1].shape)) % 4

    for layer in patient.body.layers:
        layer.ffn.gate.register_forward_hook(shuffle)  # type: ignore[union-attr, operator]
    return Planted("tokens are sent to other experts than the router chose: the permutation is not undone")


PART = ("weights", "causal", "branches", "loss")
FAULTS = (
    Fault("router reads one place off", "experts", columns_rolled, accepted=PART, kinds=MOE),
    Fault("routers of the next layer", "experts", routers_of_the_next_layer, accepted=PART, kinds=MOE),
    Fault("worst experts chosen", "experts", worst_experts, accepted=PART, kinds=MOE),
    Fault(
        "three experts lost",
        "experts",
        three_experts_lost,
        accepted=("weights", "causal", "branches"),
        kinds=MOE,
        abnormal="three of four experts write nothing",
    ),
    Fault("experts of the layer before", "experts", experts_of_the_neighbour, accepted=PART, kinds=MOE),
    Fault("shares of experts off", "experts", weights_not_normalised, accepted=("gradients", *PART), kinds=MOE),
    Fault("tokens sent to other experts", "experts", chosen_at_random, accepted=PART, kinds=MOE),
)
