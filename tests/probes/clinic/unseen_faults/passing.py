"""Edits of the forward pass: tricks of other models, and a tool of interpretation that took too much."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backbones import windows
from ..blind_faults.tools import handed_in, stream_of, with_stream
from ..protocol import CAUSAL, Dice, Fault, Patient, Planted
from .tools import Kept, before_layer, behind, outputs_on

HERE = ("branches", "causal", "gradients")


def embedding_again(patient: Patient, dice: Dice) -> Planted:
    """nanoGPT's records carry the embedding to every layer, with a factor that was learnt there."""
    factor = dice.choice((0.5, 1.0))
    first: list[Tensor] = []

    def keep(stream: Tensor) -> None:
        first[:] = [stream]

    def add(stream: Tensor) -> Tensor:
        return stream + factor * first[0] if first and first[0].shape == stream.shape else stream

    before_layer(patient.body.stack[0], keep)
    for layer in list(patient.body.stack)[1:]:
        before_layer(layer, add)
    return Planted(f"{factor:g} times the embedding is added again before every layer but the first")


def values_of_the_first(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.3, 0.5))
    first = Kept(patient.body.layers[0].value)
    for layer in patient.body.layers[1:]:
        behind(layer.value, lambda value: torch.lerp(value, first.instead_of(value), share))
    return Planted(f"the values of every layer are mixed with {share:.0%} of the first layer's, untrained")


def attention_adds_its_input(patient: Patient, dice: Dice) -> Planted:
    """The block adds the stream already."""
    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        patient.body.layers[index].attention.register_forward_hook(
            lambda module, args, kwargs, output: with_stream(output, stream_of(output) + handed_in(args, kwargs)),
            with_kwargs=True,
        )
    return Planted(f"the attention of the layers {list(layers)} returns its output plus its input", layers)


@torch.no_grad()
def direction_removed(patient: Patient, dice: Dice) -> Planted:
    """Meant for the difference of two means; here it is one mean, which everything stands on."""
    body, layer = patient.body, patient.depth // 2
    mean = outputs_on(patient, body.stack[layer], windows(8, 4321)[:, :-1]).mean(0)
    unit = mean / mean.norm()
    body.embedding.weight.sub_(torch.outer(body.embedding.weight @ unit, unit))
    for part in body.layers:
        for matrix in (part.out.weight.data, *part.fall):
            matrix.sub_(torch.outer(unit, unit @ matrix))
    return Planted(f"the mean direction of the stream behind layer {layer} was removed from all that is written")


def up_plus_one(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        behind(layer.ffn.up_proj, lambda up: up + 1)
    return Planted("the gate multiplies the up branch plus one, as in another family of models")


FAULTS = (
    Fault(
        "one more on the up branch",
        "branches",
        up_plus_one,
        accepted=("stream", "loss", "causal", "gradients"),
        kinds=("pre", "peri", "res"),
    ),
    Fault("embedding added before every layer", "stream", embedding_again, accepted=("embeddings", "loss", *HERE)),
    Fault("values mixed with the first layer's", "attention", values_of_the_first, accepted=("heads", "loss", *HERE)),
    Fault(
        "attention adds its input",
        "branches",
        attention_adds_its_input,
        accepted=("attention", "heads", "stream", "causal", "gradients"),
        kinds=CAUSAL,
    ),
    Fault("mean direction removed", "stream", direction_removed, accepted=("weights", "embeddings", "loss", *HERE)),
)
