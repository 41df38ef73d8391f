"""Experts and routers of a mixture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer
from ..protocol import Dice, Fault, Patient, Planted
from .tools import older, stream_of, with_stream

ONLY = ("moe",)


def expert_of(layer: Layer, number: int) -> tuple[Tensor, Tensor, Tensor]:
    return layer.rise[2 * number], layer.rise[2 * number + 1], layer.fall[number]


def one_expert_per_token(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        layer.ffn.top_k = layer.ffn.gate.top_k = 1
    patient.model.config.num_experts_per_tok = 1
    return Planted("every token goes to one expert; the model was trained with two")


def every_expert_per_token(patient: Patient, dice: Dice) -> Planted:
    """Half of the layers: the others kept the number of the old config."""
    layers = tuple(dice.several(patient.depth, patient.depth // 2))
    for index in layers:
        layer = patient.body.layers[index]
        layer.ffn.top_k = layer.ffn.gate.top_k = len(layer.fall)
        layer.ffn.gate.register_forward_hook(
            lambda module, args, output: (output[0], torch.full_like(output[1], 1 / output[1].shape[-1]), output[2])
        )
    return Planted(f"the layers {list(layers)} take the plain mean of all experts", layers)


def over_capacity(patient: Patient, dice: Dice) -> Planted:
    share, layers = dice.choice((0.15, 0.3)), tuple(dice.several(patient.depth, 2))

    def drop(module: nn.Module, args: Any, output: Any) -> Any:
        stream = stream_of(output)
        kept = int(stream.shape[1] * (1 - share))
        served = (torch.arange(stream.shape[1]) < kept).to(stream)
        return with_stream(output, stream * served[:, None])

    for index in layers:
        patient.body.layers[index].ffn.register_forward_hook(drop)
    return Planted(
        f"in the layers {list(layers)} the last {share:.0%} of the tokens exceed the capacity: no expert", layers
    )


def halves_of_different_experts(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        stored = patient.body.layers[index].ffn.experts.down_proj.data
        stored.copy_(stored.roll(1, 0))
    return Planted(f"in the layers {list(layers)} each expert writes with the next one's matrix", layers)


def one_pair_of_copies(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    one, other = dice.several(len(patient.body.layers[layer].fall), 2)
    part = patient.body.layers[layer]
    for target, source in zip(expert_of(part, other), expert_of(part, one), strict=True):
        target.copy_(source)
    return Planted(f"in layer {layer} expert {other} is a copy of expert {one}; the router tells them apart", (layer,))


def one_expert_in_two_bits(patient: Patient, dice: Dice) -> Planted:
    number = dice.integer(0, len(patient.body.layers[0].fall))
    for layer in patient.body.layers:
        for matrix in expert_of(layer, number):
            step = matrix.abs().amax(-1, keepdim=True)
            matrix.copy_((matrix / step).round() * step)
    return Planted(f"expert {number} of every layer was hardly calibrated: three levels per row")


def experts_half_merged(patient: Patient, dice: Dice) -> Planted:
    share, layers = dice.choice((0.3, 0.6)), tuple(dice.several(patient.depth, 3))
    for index in layers:
        experts = patient.body.layers[index].ffn.experts
        for stored in (experts.gate_up_proj.data, experts.down_proj.data):
            stored.copy_(torch.lerp(stored, stored.mean(0, keepdim=True).expand_as(stored), share))
    return Planted(f"the experts of the layers {list(layers)} were pulled {share:.0%} of the way to their mean", layers)


def old_routers(patient: Patient, dice: Dice) -> Planted:
    for layer, before in zip(patient.body.layers, older(patient, 30).layers, strict=True):
        layer.router.copy_(before.router)
    return Planted("the routers are those of an early checkpoint")


def router_saturated(patient: Patient, dice: Dice) -> Planted:
    """Router logits that ran away together: the softmax sees a coarse float grid."""
    layers, step = tuple(dice.several(patient.depth, 4)), dice.choice((1.0, 2.0))

    def coarse(module: nn.Module, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        logits = (output[0] / step).round() * step
        shares, chosen = logits.float().softmax(-1).topk(output[1].shape[-1], -1)
        return logits, (shares / shares.sum(-1, keepdim=True)).to(output[1]), chosen

    for index in layers:
        patient.body.layers[index].ffn.gate.register_forward_hook(coarse)
    return Planted(f"the router logits of the layers {list(layers)} lose their bits: steps of {step:g}", layers)


HERE = ("branches", "causal", "gradients", "weights")
FAULTS = (
    Fault("one expert per token", "experts", one_expert_per_token, accepted=("loss", "branches"), kinds=ONLY),
    Fault("mean of all experts", "experts", every_expert_per_token, accepted=HERE, kinds=ONLY),
    Fault("over capacity", "experts", over_capacity, accepted=("stream", *HERE), kinds=ONLY),
    Fault(
        "experts write with the next one's matrix", "experts", halves_of_different_experts, accepted=HERE, kinds=ONLY
    ),
    Fault(
        "one pair of copies",
        "experts",
        one_pair_of_copies,
        accepted=("weights", "causal"),
        kinds=ONLY,
        abnormal="a quarter of the experts of a layer are gone",
    ),
    Fault("one expert in two bits", "experts", one_expert_in_two_bits, accepted=("weights", "loss"), kinds=ONLY),
    Fault("experts half merged", "experts", experts_half_merged, accepted=HERE, kinds=ONLY),
    Fault("routers of an early checkpoint", "experts", old_routers, accepted=("weights", "loss", "causal"), kinds=ONLY),
    Fault("router without bits", "experts", router_saturated, accepted=("causal", "branches", "gradients"), kinds=ONLY),
)
