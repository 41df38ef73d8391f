"""From scores to weights: kernels that were rewritten, split over devices, or belong to another family of models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..protocol import CAUSAL, Dice, Fault, Patient, Planted
from ..unseen_faults.tools import before_layer, before_out
from .tools import Given, hidden, weigh_by

SEES = ("heads", "branches", "loss", "causal")


def softmax_over_queries(patient: Patient, dice: Dice) -> Planted:
    weigh_by(patient, lambda scores, seen: hidden(scores, seen).softmax(-2))
    return Planted("the softmax runs over the queries and not over the keys: a token's weights do not add up to one")


def maximum_not_corrected(patient: Patient, dice: Dice) -> Planted:
    block = int(dice.choice((16, 32)))

    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        scores = hidden(scores, seen)
        blocks = torch.stack([part.amax(-1) for part in scores.split(block, -1)], -1)
        running = blocks.cummax(-1).values.repeat_interleave(block, -1)[..., : scores.shape[-1]]
        terms = (scores - running).exp().nan_to_num(0.0).masked_fill(~seen, 0.0)
        return terms / terms.sum(-1, keepdim=True)

    weigh_by(patient, weigh)
    return Planted(f"the kernel reads {block} keys at a time and does not correct earlier terms for a new maximum")


def parts_averaged_alike(patient: Patient, dice: Dice) -> Planted:
    """Each rank holds a part of the keys; outputs should be weighed by the sums of their exponentials."""
    ranks = int(dice.choice((2, 4)))

    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        size = -(-scores.shape[-1] // ranks)
        parts = [part.softmax(-1).nan_to_num(0.0) for part in hidden(scores, seen).split(size, -1)]
        filled = sum(part.any(-1, keepdim=True).to(scores) for part in seen.split(size, -1))
        return torch.cat(parts, -1) / filled

    weigh_by(patient, weigh)
    return Planted(f"the keys lie on {ranks} ranks, and what the ranks found is averaged without weights")


def masked_after_softmax(patient: Patient, dice: Dice) -> Planted:
    weigh_by(patient, lambda scores, seen: scores.softmax(-1) * seen.to(scores))
    return Planted("the mask is applied behind the softmax: the future takes its share of the weights, which is lost")


def fresh_gates(patient: Patient, dice: Dice) -> Planted:
    """A gate per head, as in newer models; the file has no weights for it."""
    body = patient.body
    for layer in body.layers:
        given = Given(layer.attention)
        gate = 0.04 * dice.normal(layer.query.weight[: body.heads].detach())

        def close(states: Tensor, given: Given = given, gate: Tensor = gate) -> Tensor:
            shares = (given.value @ gate.T).sigmoid()
            return (states.unflatten(-1, (body.heads, -1)) * shares[..., None]).flatten(-2)

        before_out(layer, close)
    return Planted("the output of every head goes through a gate that was never trained and stands half open")


def queries_of_the_raw_stream(patient: Patient, dice: Dice) -> Planted:
    for layer in patient.body.layers:
        raw: list[Tensor] = []
        before_layer(layer.module, lambda stream, raw=raw: raw.__setitem__(slice(None), [stream]))

        def read(module: nn.Module, args: tuple[Tensor, ...], raw: list[Tensor] = raw) -> tuple[Tensor, ...] | None:
            return (raw[0],) if raw and raw[0].shape == args[0].shape else None

        layer.query.register_forward_pre_hook(read)
    return Planted("in every layer the queries are made of the stream itself and not of the norm's output")


FAULTS = (
    Fault("softmax over the queries", "attention", softmax_over_queries, accepted=SEES, kinds=CAUSAL),
    Fault("running maximum not corrected", "attention", maximum_not_corrected, accepted=SEES, kinds=CAUSAL),
    Fault("parts of the keys averaged alike", "attention", parts_averaged_alike, accepted=SEES, kinds=CAUSAL),
    Fault("masked behind the softmax", "attention", masked_after_softmax, accepted=SEES, kinds=CAUSAL),
    Fault(
        "fresh gates on the heads",
        "heads",
        fresh_gates,
        accepted=("attention", "branches", "loss", "causal"),
        kinds=("pre", "post", "moe", "encoder"),
    ),
    Fault(
        "queries of the raw stream",
        "attention",
        queries_of_the_raw_stream,
        accepted=("stream", *SEES),
        kinds=("pre", "peri", "moe"),
    ),
)
