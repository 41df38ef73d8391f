"""Both ends: ids, rows and logits that the tokenizer, the ranks or the sampler got wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

from ..backbones import MASK
from ..blind_faults.tools import Lesson, school
from ..protocol import CAUSAL, Dice, Fault, Patient, Planted

OUTPUT = ("embeddings", "final_norm", "training")
UNKNOWN = 258  # an id that no text contains
ENCODER = ("encoder",)


def top_only(patient: Patient, dice: Dice) -> Planted:
    """A filter of the sampler, left in the forward pass."""
    count = int(dice.choice((10, 20)))

    def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        bar = output.topk(count, -1).values[..., -1:]
        return output.masked_fill(output < bar, -1e4)

    patient.body.head.register_forward_hook(keep)
    return Planted(f"all logits but the {count} largest are removed, as if somebody sampled")


def head_of_the_next_but_one(patient: Patient, dice: Dice) -> Planted:
    """Models that predict several tokens have several heads; the second was loaded as the first."""
    head = patient.body.head
    head.weight = nn.Parameter(head.weight.detach().clone())

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        logits = model(tokens[:, :-1]).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())

    school(patient.model, patient.kind, Lesson(80, 3e-3, loss=loss), learners=(head.weight,))
    return Planted("the head is one that was trained to say the token after the next")


def first_rows_added(patient: Patient, dice: Dice) -> Planted:
    """A rank looks up row 0 for what is not its own, and should return zero instead."""
    ranks = int(dice.choice((2, 4)))
    size = patient.body.embedding.num_embeddings // ranks

    def add(module: Any, args: Any, output: Tensor) -> Tensor:
        firsts = embedding(torch.arange(ranks) * size, module.weight) * getattr(module, "embed_scale", 1.0)
        others = 1 - torch.nn.functional.one_hot((args[0] // size).clamp(max=ranks - 1), ranks).to(output)
        return output + others @ firsts.to(output)

    patient.body.embedding.register_forward_hook(add)
    return Planted(f"each of {ranks} ranks adds the first row of its part to the tokens of the others")


def another_mask(patient: Patient, dice: Dice) -> Planted:
    """The tokenizer of another release does not know the token."""

    def read(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (args[0].masked_fill(args[0] == MASK, UNKNOWN),)

    patient.body.embedding.register_forward_pre_hook(read)
    return Planted("the token that hides a byte arrives as an unknown one, with a row that was never trained")


def second_segment(patient: Patient, dice: Dice) -> Planted:
    patient.model.roformer.embeddings.token_type_embeddings.register_forward_pre_hook(
        lambda module, args: (torch.ones_like(args[0]),)
    )
    return Planted("every token is said to be of the second segment, which the model never saw")


FAULTS = (
    Fault("only the largest logits", "loss", top_only, accepted=OUTPUT),
    Fault("head of the next token but one", "loss", head_of_the_next_but_one, accepted=OUTPUT, kinds=CAUSAL),
    Fault("first rows of other ranks added", "embeddings", first_rows_added, accepted=("stream", "loss", "branches")),
    Fault("another id for the mask", "embeddings", another_mask, accepted=("loss", "training"), kinds=ENCODER),
    Fault("second segment everywhere", "embeddings", second_segment, accepted=("loss", "stream"), kinds=ENCODER),
)
