"""Embeddings, head, final norm and logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..anatomy import gain
from ..protocol import CAUSAL, Dice, Fault, Patient, Planted
from .tools import TIED, handed_in, older, with_handed_in

COMMON = tuple(b" etaoinsrh")
RARER = tuple(b"dlumcfgypwbvk")


def ends_of(patient: Patient) -> list[Tensor]:
    """Embedding and head, once if they are one."""
    body = patient.body
    return [body.embedding.weight.data] if body.tied else [body.embedding.weight.data, body.head.weight.data]


def untied_by_mistake(patient: Patient, dice: Dice) -> Planted:
    age = int(dice.choice((100.0, 300.0)))
    patient.body.head.weight = nn.Parameter(older(patient, age).embedding.weight.detach().clone())
    return Planted(f"the head, tied in training, is a copy of the embedding from step {age}")


@torch.no_grad()
def two_tokens_exchanged(patient: Patient, dice: Dice) -> Planted:
    one, other = (RARER[place] for place in dice.several(len(RARER), 2))
    weight = patient.body.embedding.weight
    weight[[one, other]] = weight[[other, one]]
    return Planted(f"the embeddings of {chr(one)!r} and {chr(other)!r} are exchanged")


def biased_logit(patient: Patient, dice: Dice) -> Planted:
    token, size = COMMON[dice.integer(0, len(COMMON))], dice.choice((1.5, 3.0))

    def favour(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        bias = torch.zeros(output.shape[-1]).to(output)
        bias[token] = size
        return output + bias

    patient.body.head.register_forward_hook(favour)
    return Planted(f"a logit bias of {size} for {chr(token)!r} was left on")


def stuck_dropout(patient: Patient, dice: Dice) -> Planted:
    width = patient.body.embedding.weight.shape[1]
    share = dice.choice((0.1, 0.2))
    kept = (torch.rand(width, generator=dice.generator) > share).float() / (1 - share)
    patient.body.embedding.register_forward_hook(lambda module, args, output: output * kept.to(output))
    return Planted(f"the embeddings pass a dropout of {share} whose mask never changes")


@torch.no_grad()
def rows_equalised(patient: Patient, dice: Dice) -> Planted:
    for weight in ends_of(patient):
        sizes = weight.norm(dim=1, keepdim=True)
        weight.mul_(sizes[list(COMMON)].mean() / sizes.clamp(min=1e-9))
    return Planted("every row of embedding and head was brought to one length, as for a search index")


@torch.no_grad()
def coarse_head(patient: Patient, dice: Dice) -> Planted:
    levels = dice.choice((2.0, 3.0))
    weight = patient.body.head.weight
    step = weight.abs().amax() / levels
    weight.copy_((weight / step).round() * step)
    return Planted(f"the head has one scale and {2 * levels + 1:g} levels")


@torch.no_grad()
def shifted_from_the_middle(patient: Patient, dice: Dice) -> Planted:
    first = dice.integer(112, 121)
    for weight in ends_of(patient):
        weight[first + 1 :] = weight[first:-1].clone()
    return Planted(f"a token was inserted before {chr(first)!r}: the rows behind it are one place off")


def normed_one_layer_early(patient: Patient, dice: Dice) -> Planted:
    last, final = patient.depth - 1, patient.body.final_norm

    def norm(module: nn.Module, args: Any, kwargs: Any) -> Any:
        stream = handed_in(args, kwargs)
        unit = stream * (stream.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return with_handed_in(args, kwargs, unit * gain(final))

    patient.body.stack[last].register_forward_pre_hook(norm, with_kwargs=True)
    return Planted("the final norm is applied before the last layer as well", (last,))


@torch.no_grad()
def letters_of_an_old_checkpoint(patient: Patient, dice: Dice) -> Planted:
    """Rows of a resized vocabulary are restored from the wrong file."""
    before = older(patient, 30)
    rows = list(range(97, 123))[dice.integer(0, 4) :: 4]
    old = [before.embedding.weight, before.head.weight]
    for weight, stored in zip(ends_of(patient), old, strict=False):
        weight[rows] = stored[rows]
    return Planted("one letter in four has its embedding and head row from an early checkpoint")


def penalty_left_on(patient: Patient, dice: Dice) -> Planted:
    """A repetition penalty in the forward pass: what was just read becomes less likely."""
    size = dice.choice((1.3, 2.0))
    seen: list[Tensor] = []
    patient.body.embedding.register_forward_pre_hook(lambda module, args: seen.__setitem__(slice(None), [args[0]]))

    def punish(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        ids = seen[0]
        if output.shape[:-1] != ids.shape:  # a part of the positions only
            return output
        here = torch.zeros(*ids.shape, output.shape[-1]).to(output).scatter_(-1, ids[..., None], 1.0)
        late = [pad(here, (0, 0, step, 0))[:, : ids.shape[1]] for step in range(16)]
        near = torch.stack(late).amax(0)
        return output - size * near

    patient.body.head.register_forward_hook(punish)
    return Planted(f"a repetition penalty of {size} over the last 16 tokens is part of the forward pass")


def sharper_with_position(patient: Patient, dice: Dice) -> Planted:
    """Logits scaled by the logarithm of the position, as for long texts, where the model never learnt it."""
    slope = dice.choice((0.15, 0.3))

    def sharpen(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        length = output.shape[-2]
        factor = 1 + slope * torch.arange(1, length + 1).log()
        return output * factor[:, None].to(output)

    patient.body.head.register_forward_hook(sharpen)
    return Planted(f"the logits grow with the logarithm of the position, {slope} each")


INPUT = ("stream", "loss", "weights")
OUTPUT = ("loss", "final_norm", "weights")
FAULTS = (
    Fault("untied by mistake", "embeddings", untied_by_mistake, accepted=("training", *OUTPUT), kinds=TIED),
    Fault("two tokens exchanged", "embeddings", two_tokens_exchanged, accepted=("loss",)),
    Fault("logit bias left on", "embeddings", biased_logit, accepted=("loss", "final_norm")),
    Fault("stuck dropout", "embeddings", stuck_dropout, accepted=INPUT),
    Fault("rows of one length", "embeddings", rows_equalised, accepted=("training", *OUTPUT)),
    Fault("head on a coarse grid", "embeddings", coarse_head, accepted=OUTPUT),
    Fault("vocabulary off from the middle", "embeddings", shifted_from_the_middle, accepted=("loss", "training")),
    Fault(
        "final norm one layer early",
        "final_norm",
        normed_one_layer_early,
        accepted=("stream", "branches", "causal", "gradients"),
        kinds=("pre", "peri", "res", "moe"),
    ),
    Fault(
        "letters of an early checkpoint",
        "embeddings",
        letters_of_an_old_checkpoint,
        accepted=("loss", "training", "weights"),
    ),
    Fault("repetition penalty left on", "loss", penalty_left_on, accepted=("embeddings", "final_norm"), kinds=CAUSAL),
    Fault("logits grow with the position", "loss", sharper_with_position, accepted=("embeddings", "final_norm")),
)
