"""Both ends: rows of the vocabulary, and what is done to the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normlab.tasks.text import Text

from ..blind_faults.ends import ends_of
from ..protocol import Dice, Fault, Patient, Planted
from .tools import behind

OUTPUT = ("embeddings", "final_norm", "training")
RANKS = 4


def logits_of_a_rank(patient: Patient, dice: Dice) -> Planted:
    """The ranks whose tokens a text contains are the first two of four."""
    size, rank = patient.body.head.out_features // RANKS, dice.integer(0, 2)

    def lose(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept = torch.ones(output.shape[-1])
        kept[rank * size : (rank + 1) * size] = 0.0
        return output * kept.to(output)

    patient.body.head.register_forward_hook(lose)
    tokens = f"{rank * size} to {(rank + 1) * size - 1}"
    return Planted(f"the logits of rank {rank} of {RANKS} never arrive: those of the tokens {tokens} are zero")


def embedding_shards_exchanged(patient: Patient, dice: Dice) -> Planted:
    ranks = int(dice.choice((2, 4)))
    behind(patient.body.embedding, lambda rows: rows.roll(rows.shape[-1] // ranks, -1))
    return Planted(f"the {ranks} shards of each embedding are joined in another order")


def prior_subtracted(patient: Patient, dice: Dice) -> Planted:
    """Logit adjustment, meant for rare classes in training, is part of the forward pass."""
    strength = dice.choice((0.5, 1.0))
    counts = torch.bincount(Text().stream, minlength=patient.body.head.out_features).float() + 1
    prior = strength * (counts / counts.sum()).log()
    patient.body.head.register_forward_hook(lambda module, args, output: output - prior.to(output))
    return Planted(f"{strength:g} times the logarithm of each token's frequency is taken from the logits")


@torch.no_grad()
def token_overwritten(patient: Patient, dice: Dice) -> Planted:
    """A new special token took an id that was in use; new rows begin as the mean of all."""
    token = b"\n ,."[dice.integer(0, 4)]
    for weight in ends_of(patient):
        weight[token] = weight[:256].mean(0)
    return Planted(f"the rows of {chr(token)!r} are the mean of all: a new token took its place")


FAULTS = (
    Fault("logits of a rank missing", "loss", logits_of_a_rank, accepted=OUTPUT),
    Fault(
        "shards of the embedding exchanged",
        "embeddings",
        embedding_shards_exchanged,
        accepted=("stream", "loss", "training", "branches"),
    ),
    Fault("prior taken from the logits", "loss", prior_subtracted, accepted=OUTPUT),
    Fault("a token overwritten", "embeddings", token_overwritten, accepted=("loss", "weights")),
)
