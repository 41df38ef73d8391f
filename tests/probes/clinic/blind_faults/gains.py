"""Norms and the way around them: exchanged, decayed, over the wrong axes, or with the stream led past them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..anatomy import gain, set_gain
from ..protocol import CAUSAL, ROTARY, Dice, Fault, Patient, Planted
from .tools import BIASED, ROOT, handed_in, stream_of, with_handed_in, with_stream

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


def final_and_last(patient: Patient, dice: Dice) -> Planted:
    last = patient.depth - 1
    exchange(patient.body.layers[last].ffn_norms[-1], patient.body.final_norm)
    return Planted("the final norm and the last norm of the last layer are exchanged", (last,))


def gains_decayed(patient: Patient, dice: Dice) -> Planted:
    factor = dice.choice((0.5, 0.65, 0.8))
    for norm in path_norms(patient):
        set_gain(norm, gain(norm) * factor)
    return Planted(f"weight decay on the gains: all of them are multiplied by {factor}")


def norm_over_the_window(patient: Patient, dice: Dice) -> Planted:
    layers, centred = tuple(dice.several(patient.depth, 2)), patient.kind in BIASED
    for index in layers:
        for norm in patient.body.layers[index].norms:
            norm.register_forward_hook(
                lambda module, args, output: standard(module, args[0], tuple(range(args[0].dim())), centred=centred)
            )
    return Planted(f"the norms of the layers {list(layers)} average over all tokens: a `dim` is missing", layers)


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
    Fault("final and last norm exchanged", "final_norm", final_and_last, accepted=HERE, kinds=ROTARY),
    Fault("gains decayed", "weights", gains_decayed, accepted=("final_norm", "training", "attention", *ALL)),
    Fault(
        "norms over all tokens",
        "stream",
        norm_over_the_window,
        accepted=("attention", *HERE),
        kinds=CAUSAL,
        abnormal="what is still to come leaks into the prediction",
    ),
    Fault("residual behind the norm", "stream", residual_behind_the_norm, accepted=HERE, kinds=BEFORE),
    Fault("branches in parallel", "branches", parallel_branches, accepted=("causal", "gradients"), kinds=ROOT),
)
