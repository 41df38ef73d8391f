"""Norms and the way around them: swapped, squared, decayed, of the wrong kind, over the wrong axes, or skipped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Layer, gain, set_gain
from ..protocol import CAUSAL, ROTARY, Dice, Fault, Patient, Planted
from .tools import handed_in, stream_of, with_handed_in, with_stream

ROOT = ("pre", "peri", "res", "moe")  # root mean square; the others subtract the mean
MEAN = ("post", "encoder")
BEFORE = ("pre", "peri", "moe")  # a norm stands before the branch


def path_norms(patient: Patient) -> list[nn.Module]:
    """Every norm on the residual path, the final one too."""
    found = [norm for layer in patient.body.layers for norm in layer.norms]
    return [*found, patient.body.final_norm] if patient.body.final_norm is not None else found


def exchange(one: nn.Module, other: nn.Module) -> None:
    kept = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    one.load_state_dict(other.state_dict())
    other.load_state_dict(kept)


def standard(norm: nn.Module, stream: Tensor, axes: tuple[int, ...], *, centred: bool) -> Tensor:
    """The norm with its statistics over other axes."""
    stream = stream - stream.mean(axes, keepdim=True) if centred else stream
    unit = stream * (stream.pow(2).mean(axes, keepdim=True) + 1e-6).rsqrt()
    bias = getattr(norm, "bias", None)
    return unit * gain(norm) + (0.0 if bias is None else bias)


def norms_exchanged(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        exchange(layer.attention_norms[-1], layer.ffn_norms[0])
    return Planted("in every layer two norms are exchanged: `post_attention_layernorm` means two things")


def final_and_last(patient: Patient, dice: Dice) -> Planted:
    last = patient.depth - 1
    exchange(patient.body.layers[last].ffn_norms[-1], patient.body.final_norm)
    return Planted("the final norm and the last norm of the last layer are exchanged", (last,))


def norms_centre(patient: Patient, dice: Dice) -> Planted:
    for norm in path_norms(patient):
        norm.register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(-1, keepdim=True), *args[1:]))
    return Planted("every norm subtracts the mean first, though the model was trained without")


def norms_do_not_centre(patient: Patient, dice: Dice) -> Planted:
    for norm in path_norms(patient):
        norm.register_forward_hook(lambda module, args, output: standard(module, args[0], (-1,), centred=False))
    return Planted("no norm subtracts the mean, though the model was trained with it")


def gains_decayed(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((0.35, 0.5, 0.65))
    for norm in path_norms(patient):
        set_gain(norm, gain(norm) * factor)
    return Planted(f"weight decay on the gains: all of them are multiplied by {factor}")


@torch.no_grad()
def norm_biases_lost(patient: Patient, dice: Dice) -> Planted:
    for norm in path_norms(patient):
        norm.bias.zero_()
    return Planted("the biases of the norms were not loaded")


@torch.no_grad()
def fold(layer: Layer) -> None:
    """The gains before the branches, into the matrices that read them."""
    for linear in (layer.query, layer.key, layer.value):
        linear.weight.mul_(gain(layer.attention_norms[0]))
    for matrix in (*layer.rise, *([] if layer.router is None else [layer.router])):
        matrix.mul_(gain(layer.ffn_norms[0]))


def folded_and_kept(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        fold(layer)
    return Planted("the gains were folded into the matrices and kept in the norms: they act twice")


def norms_per_shard(patient: Patient, dice: Dice) -> Planted:
    parts = int(dice.choice((2.0, 4.0)))

    def shard(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        pieces = [
            piece * (piece.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() for piece in args[0].chunk(parts, dim=-1)
        ]
        bias = getattr(module, "bias", None)
        return torch.cat(pieces, -1) * gain(module) + (0.0 if bias is None else bias)

    for norm in path_norms(patient):
        norm.register_forward_hook(shard)
    return Planted(f"every norm takes its statistics over a {parts}th of the width: a sum over ranks is missing")


def norm_over_the_window(patient: Patient, dice: Dice) -> Planted:
    layers, centred = tuple(dice.several(patient.depth, 2)), patient.kind in MEAN
    for index in layers:
        for norm in patient.body.layers[index].norms:
            norm.register_forward_hook(
                lambda module, args, output: standard(module, args[0], tuple(range(args[0].dim())), centred=centred)
            )
    return Planted(f"the norms of the layers {list(layers)} average over all tokens: a `dim` is missing", layers)


def norm_skipped(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    norms = patient.body.layers[layer].norms
    place = dice.integer(0, len(norms))
    norms[place].register_forward_hook(lambda module, args, output: args[0])
    return Planted(f"norm {place} of layer {layer} is skipped", (layer,))


def residual_behind_the_norm(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 2))
    for index in layers:
        norm = patient.body.layers[index].attention_norms[0]

        def swap(module: nn.Module, args: Any, kwargs: Any, output: Any, norm: nn.Module = norm) -> Any:
            stream = handed_in(args, kwargs)
            return with_stream(output, stream_of(output) + standard(norm, stream, (-1,), centred=False) - stream)

        patient.body.stack[index].register_forward_hook(swap, with_kwargs=True)
    return Planted(f"the layers {list(layers)} carry the normed stream on instead of the stream", layers)


def parallel_branches(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 3))
    for index in layers:
        layer = patient.body.layers[index]
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: Any, kwargs: Any, kept: list[Tensor] = kept) -> None:
            kept[:] = [handed_in(args, kwargs)]

        def hand(module: nn.Module, args: Any, kwargs: Any, kept: list[Tensor] = kept) -> Any:
            return with_handed_in(args, kwargs, kept[0])

        layer.module.register_forward_pre_hook(keep, with_kwargs=True)
        reader = layer.ffn if patient.kind == "res" else layer.ffn_norms[0]
        reader.register_forward_pre_hook(hand, with_kwargs=True)
    return Planted(
        f"the FFNs of the layers {list(layers)} do not see their attention: the branches are parallel", layers
    )


ALL = ("stream", "branches", "loss", "causal")
HERE = ("branches", "causal", "gradients", "weights")
FAULTS = (
    Fault("norms exchanged", "weights", norms_exchanged, accepted=("branches", "causal", "loss")),
    Fault("final and last norm exchanged", "final_norm", final_and_last, accepted=HERE, kinds=ROTARY),
    Fault("norms centre", "stream", norms_centre, accepted=("final_norm", *ALL), kinds=ROOT),
    Fault("norms do not centre", "stream", norms_do_not_centre, accepted=("final_norm", *ALL), kinds=MEAN),
    Fault("gains decayed", "weights", gains_decayed, accepted=("final_norm", "training", "attention", *ALL)),
    Fault("norm biases not loaded", "weights", norm_biases_lost, accepted=("final_norm", *ALL), kinds=MEAN),
    Fault("gains folded in and kept", "weights", folded_and_kept, accepted=("attention", *ALL), kinds=BEFORE),
    Fault("norms per shard", "stream", norms_per_shard, accepted=("final_norm", *ALL)),
    Fault(
        "norms over all tokens",
        "stream",
        norm_over_the_window,
        accepted=("attention", *HERE),
        kinds=CAUSAL,
        abnormal="what is still to come leaks into the prediction",
    ),
    Fault("norm skipped", "branches", norm_skipped, accepted=("stream", "causal", "gradients", "weights")),
    Fault("residual behind the norm", "stream", residual_behind_the_norm, accepted=HERE, kinds=BEFORE),
    Fault("branches in parallel", "branches", parallel_branches, accepted=("causal", "gradients"), kinds=ROOT),
)
