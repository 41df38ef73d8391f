"""What passes through: tools left on that steer, stop, clip or thin out what the layers say."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..backbones import windows
from ..blind_faults.tools import handed_in, stream_of, with_stream
from ..protocol import CAUSAL, Dice, Fault, Patient, Planted
from ..unseen_faults.tools import behind, outputs_on, shouted
from .tools import second

HERE = ("branches", "loss", "causal", "gradients")
DENSE = ("pre", "post", "peri", "res", "encoder")


def steered(patient: Patient, dice: Dice) -> Planted:
    """Towards capitals: a difference of means."""
    layer, strength = dice.layer(patient), dice.choice((2.0, 4.0))
    text, site = windows(8, 4321)[:, :-1], patient.body.stack[layer]
    vector = outputs_on(patient, site, shouted(text)).mean(0) - outputs_on(patient, site, text).mean(0)
    behind(site, lambda stream: stream + strength * vector.to(stream))
    return Planted(f"{strength:g} times a vector that steers towards capitals is added behind layer {layer}", (layer,))


def left_early(patient: Patient, dice: Dice) -> Planted:
    """A threshold for models that learnt to stop."""
    body, layer, bar = patient.body, patient.depth // 2 - 1, dice.choice((0.3, 0.5))
    last = nn.Identity() if body.final_norm is None else copy.deepcopy(body.final_norm)
    head = copy.deepcopy(body.head)
    gone: list[Tensor] = []

    @torch.no_grad()
    def decide(stream: Tensor) -> Tensor:
        gone[:] = [head(last(stream)).softmax(-1).amax(-1, keepdim=True) > bar]
        return stream

    behind(body.stack[layer], decide)
    later = tuple(range(layer + 1, patient.depth))
    for index in later:
        body.stack[index].register_forward_hook(
            lambda module, args, kwargs, output: with_stream(
                output, torch.where(gone[0], handed_in(args, kwargs), stream_of(output))
            ),
            with_kwargs=True,
        )
    return Planted(f"tokens that are {bar:.0%} sure behind layer {layer} skip the layers {list(later)}", later)


def activations_dropped(patient: Patient, dice: Dice) -> Planted:
    """The share to drop was taken for the share to keep."""
    for layer in patient.body.layers:

        def thin(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            sizes = args[0].abs()
            bar = sizes.topk(max(sizes.shape[-1] // 10, 1), -1).values[..., -1:]
            return (args[0] * (sizes >= bar),)

        second(layer).register_forward_pre_hook(thin)
    return Planted("of the hidden units of each FFN only the largest tenth is kept, token by token")


FAULTS = (
    Fault("steering vector left on", "stream", steered, accepted=HERE),
    Fault("confident tokens leave early", "causal", left_early, accepted=("stream", "branches", "loss"), kinds=CAUSAL),
    Fault(
        "nine activations in ten dropped", "branches", activations_dropped, accepted=("weights", *HERE[1:]), kinds=DENSE
    ),
)
