"""The way through the layers: what a branch is handed, and what is done with what it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..protocol import Dice, Fault, Patient, Planted


def stream_of(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def with_stream(output: Any, stream: Tensor) -> Any:
    return (stream, *output[1:]) if isinstance(output, tuple) else stream


def handed_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def bypassed(patient: Patient, dice: Dice) -> Planted:
    first = dice.integer(1, patient.depth - 2)
    for layer in (first, first + 1):
        patient.body.stack[layer].register_forward_hook(
            lambda module, args, kwargs, output: with_stream(output, handed_in(args, kwargs)), with_kwargs=True
        )
    return Planted(f"the layers {first} and {first + 1} are skipped: their stage was not started", (first, first + 1))


def added_twice(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)

    def add(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return with_stream(output, stream_of(output) + 2 * handed_in(args, kwargs))

    patient.body.stack[layer].register_forward_hook(add, with_kwargs=True)
    return Planted(f"layer {layer} adds its input three times", (layer,))


def residual_lost(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)

    def subtract(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return with_stream(output, stream_of(output) - 0.9 * handed_in(args, kwargs))

    patient.body.stack[layer].register_forward_hook(subtract, with_kwargs=True)
    return Planted(f"nine tenths of the stream are lost behind layer {layer}", (layer,))


def stale_buffer(patient: Patient, dice: Dice) -> Planted:
    first = dice.integer(1, patient.depth - 1)
    kept: dict[str, Tensor] = {}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        kept["output"] = stream_of(output)

    patient.body.layers[first - 1].ffn.register_forward_hook(keep)
    for layer in (first, first + 1):
        patient.body.layers[layer].ffn.register_forward_hook(
            lambda module, args, output: with_stream(output, kept["output"])
        )
    what = f"the FFNs of the layers {first} and {first + 1} return what that of layer {first - 1} wrote into the buffer"
    return Planted(what, (first, first + 1))


def one_token_late(patient: Patient, dice: Dice) -> Planted:
    layer = dice.layer(patient)
    patient.body.layers[layer].value.register_forward_hook(lambda module, args, output: output.roll(3, 1))
    return Planted(f"the values of layer {layer} arrive three tokens late", (layer,))


def coarse_stream(patient: Patient, dice: Dice) -> Planted:
    steps = dice.choice((3.0, 5.0))

    def round_stream(module: nn.Module, args: Any, output: Any) -> Any:
        stream = stream_of(output)
        step = stream.abs().amax(-1, keepdim=True) / steps
        return with_stream(output, (stream / step).round() * step)

    for layer in patient.body.stack:
        layer.register_forward_hook(round_stream)
    return Planted(f"the stream between layers is rounded to {2 * steps + 1:g} levels per token")


def clipped_stream(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.5, 0.8))

    def clip(module: nn.Module, args: Any, output: Any) -> Any:
        stream = stream_of(output)
        limit = share * stream.pow(2).mean(-1, keepdim=True).sqrt()
        return with_stream(output, torch.minimum(torch.maximum(stream, -limit), limit))

    for layer in patient.body.stack:
        layer.register_forward_hook(clip)
    return Planted(f"the stream is clipped at {share} times its root mean square behind every layer")


def stochastic_depth(patient: Patient, dice: Dice) -> Planted:
    share = dice.choice((0.15, 0.3))

    def drop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        stream = stream_of(output)
        skipped = torch.rand(stream.shape[0], 1, 1) < share
        return with_stream(output, torch.where(skipped, handed_in(args, kwargs), stream))

    for layer in patient.body.stack:
        layer.register_forward_hook(drop, with_kwargs=True)
    return Planted(f"stochastic depth stays on: a row skips each layer with probability {share}")


def stream_noise(patient: Patient, dice: Dice) -> Planted:
    layer, size = dice.layer(patient), dice.choice((0.5, 1.0))

    def shake(module: nn.Module, args: Any, output: Any) -> Any:
        stream = stream_of(output)
        return with_stream(output, stream + size * stream.pow(2).mean().sqrt() * torch.randn_like(stream))

    patient.body.stack[layer].register_forward_hook(shake)
    return Planted(f"layer {layer} adds noise of {size} times the stream, as on a broken device", (layer,))


def tokens_mixed_up(patient: Patient, dice: Dice) -> Planted:
    layers = tuple(dice.several(patient.depth, 3))

    def shift(module: nn.Module, args: Any, output: Any) -> Any:
        return with_stream(output, stream_of(output).roll(1, -2))

    for layer in layers:
        patient.body.layers[layer].ffn.register_forward_hook(shift)
    return Planted(f"the FFN outputs of the layers {list(layers)} belong to the token before", layers)


PART = ("branches", "causal", "gradients", "weights")
ALL = ("loss", "stream", "branches", "causal", "training", "gradients")
FAULTS = (
    Fault("two layers skipped", "causal", bypassed, accepted=("branches", "gradients", "stream", "weights")),
    Fault("input added three times", "stream", added_twice, accepted=PART),
    Fault("stream lost behind a layer", "stream", residual_lost, accepted=PART),
    Fault("FFN returns an old buffer", "branches", stale_buffer, accepted=("causal", "gradients", "weights")),
    Fault("values arrive late", "attention", one_token_late, accepted=("heads", "causal", "branches")),
    Fault("coarse stream", "stream", coarse_stream, accepted=ALL),
    Fault("clipped stream", "stream", clipped_stream, accepted=ALL),
    Fault("stochastic depth left on", "loss", stochastic_depth, accepted=ALL),
    Fault("noise on the stream", "stream", stream_noise, accepted=("loss", *PART)),
    Fault("FFNs of the token before", "causal", tokens_mixed_up, accepted=("branches", "gradients", "stream")),
)
