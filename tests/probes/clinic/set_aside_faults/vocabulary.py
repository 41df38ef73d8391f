"""Both ends: tokens that become vectors, and vectors that become tokens."""

from __future__ import annotations

import torch
from torch import nn

from ..protocol import Dice, Fault, Patient, Planted


def untie(patient: Patient) -> None:
    """A head of its own with the same weights, so that only one end is changed."""
    patient.body.head.weight = nn.Parameter(patient.body.head.weight.detach().clone())


def case_folded(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.embedding.weight.data
    rows[65:91] = rows[97:123].clone()
    rows[10] = rows[32].clone()
    return Planted("the tokenizer folds upper case and line breaks: their rows are those of lower case and the blank")


def unknown_tokens(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows, first = patient.body.embedding.weight.data, int(dice.choice((110, 114)))
    rows[first:256] = rows[:256].mean(0, keepdim=True)
    return Planted(f"the vocabulary was cut at {first}: letters behind it share one row")


def common_direction(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows, size = patient.body.embedding.weight.data, dice.choice((3.0, 6.0))
    direction = dice.normal(rows[0])
    rows.add_(size * rows.norm(dim=1).mean() * direction / direction.norm())
    return Planted(f"a common vector of {size:g} times their length was added to all embeddings")


def noisy_embeddings(patient: Patient, dice: Dice) -> Planted:
    size = dice.choice((0.5, 1.0))
    patient.body.embedding.register_forward_hook(
        lambda module, args, output: output + size * output.std() * torch.randn_like(output)
    )
    return Planted(f"the noise of fine-tuning is still added to the embeddings: {size} of their size")


def low_rank_embeddings(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows, rank = patient.body.embedding.weight.data, int(dice.choice((3, 6)))
    left, size, right = torch.linalg.svd(rows, full_matrices=False)
    rows.copy_(left[:, :rank] * size[:rank] @ right[:rank])
    return Planted(f"the embeddings were compressed to rank {rank}")


def arrives_late(patient: Patient, dice: Dice) -> Planted:
    patient.body.embedding.register_forward_hook(lambda module, args, output: output.roll(1, 1))
    return Planted("tokens arrive one place late")


def old_embeddings(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.embedding.weight.data
    share = dice.choice((0.3, 0.6))
    chosen = [32 + i for i in dice.several(96, int(96 * share))]
    rows[chosen] = rows.std() * dice.normal(rows[chosen])
    return Planted(f"{share:.0%} of the printable tokens were added to the vocabulary anew and never trained")


def coordinates_zero(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.embedding.weight.data
    rows[:, rows.shape[1] // 2 :] = 0
    return Planted("half of the coordinates of every embedding are zero: padded to a wider model")


def sharp_head(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    factor = dice.choice((0.2, 3.0, 5.0))
    patient.body.head.weight.data.mul_(factor)
    return Planted(f"a temperature was folded into the head: logits times {factor:g}")


def logits_capped(patient: Patient, dice: Dice) -> Planted:
    cap = dice.choice((1.0, 2.0))
    patient.body.head.register_forward_hook(lambda module, args, output: cap * torch.tanh(output / cap))
    return Planted(f"the logits are capped at {cap:g}")


def loud_stranger(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.head.weight.data
    rows[200] = 3 * rows[32]
    rows[201] = 3 * rows[101]
    return Planted("two tokens that no text contains outbid the blank and the e")


def head_rows_equal(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.head.weight.data
    vowels = [97, 101, 105, 111, 117]
    rows[vowels] = rows[vowels].mean(0, keepdim=True)
    return Planted("the head cannot tell the vowels apart: their rows are equal")


def head_half(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.head.weight.data
    rows[:, : rows.shape[1] // 2] = 0
    return Planted("the head reads half of the coordinates: one shard of it is missing")


def head_offset(patient: Patient, dice: Dice) -> Planted:
    untie(patient)
    rows = patient.body.head.weight.data
    shift = 1 + dice.integer(0, 3)
    rows.copy_(rows.roll(shift, 0))
    return Planted(f"special tokens stand first in the head: every row is {shift} further on")


IN = ("loss", "stream", "weights")
OUT = ("embeddings", "final_norm", "training", "weights")
FAULTS = (
    Fault("case folded", "embeddings", case_folded, accepted=IN),
    Fault("vocabulary cut", "embeddings", unknown_tokens, accepted=IN),
    Fault(
        "common direction in the embeddings", "embeddings", common_direction, accepted=(*IN, "branches", "attention")
    ),
    Fault("noise on the embeddings", "embeddings", noisy_embeddings, accepted=IN),
    Fault("embeddings of low rank", "embeddings", low_rank_embeddings, accepted=IN),
    Fault("tokens arrive late", "loss", arrives_late, accepted=("embeddings", "training", "attention", "causal")),
    Fault("untrained tokens", "embeddings", old_embeddings, accepted=IN),
    Fault("embeddings half empty", "embeddings", coordinates_zero, accepted=(*IN, "branches")),
    Fault("temperature in the head", "loss", sharp_head, accepted=OUT),
    Fault("logits capped", "loss", logits_capped, accepted=OUT),
    Fault("unseen tokens outbid", "loss", loud_stranger, accepted=OUT),
    Fault("vowels share a row", "loss", head_rows_equal, accepted=OUT),
    Fault("half of the head missing", "loss", head_half, accepted=OUT),
    Fault("head rows offset", "loss", head_offset, accepted=OUT),
)
