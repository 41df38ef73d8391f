"""Experts and routers. Each of these is tried in two models of the only kind that has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..blind_faults.tools import Lesson, school
from ..protocol import Dice, Fault, Patient, Planted
from ..unseen_faults.tools import LEAK

ONLY = ("moe",)
Routed = tuple[Tensor, Tensor, Tensor]  # logits, shares, chosen


def experts_choose(patient: Patient, dice: Dice) -> Planted:
    """Each expert takes its best tokens, half of them; in training tokens took their best experts."""

    def hook(module: nn.Module, args: Any, output: Routed) -> Routed:
        logits, shares, _ = output
        count, wanted = logits.shape[-1], shares.shape[-1]
        chances = logits.float().softmax(-1)
        best = chances.topk(max(len(chances) * wanted // count, 1), 0).indices
        taken = torch.zeros_like(chances).scatter(0, best, 1.0) * chances
        kept, chosen = taken.topk(wanted, -1)
        return logits, kept.to(shares), chosen

    for layer in patient.body.layers:
        layer.ffn.gate.register_forward_hook(hook)
    return Planted("experts choose their tokens, where tokens chose their experts: some tokens get none")


def softmax_over_tokens(patient: Patient, dice: Dice) -> Planted:
    def hook(module: nn.Module, args: Any, output: Routed) -> Routed:
        logits, shares, _ = output
        kept, chosen = logits.float().softmax(0).topk(shares.shape[-1], -1)
        return logits, (kept / kept.sum(-1, keepdim=True)).to(shares), chosen

    for layer in patient.body.layers:
        layer.ffn.gate.register_forward_hook(hook)
    return Planted("the softmax of the routers runs over the tokens of the batch and not over the experts")


def balance_too_strong(patient: Patient, dice: Dice) -> Planted:
    """A coefficient of 0.02 with the point lost, in a library that sums over layers."""
    strength = dice.choice((10.0, 50.0))

    def loss(model: nn.Module, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        found = model(tokens[:, :-1], output_router_logits=True)
        return cross_entropy(found.logits.flatten(0, 1), tokens[:, 1:].flatten()) + strength * found.aux_loss

    school(patient.model, patient.kind, Lesson(60, 1e-3, loss=loss))
    return Planted(f"60 steps in which the loss of balance weighed {strength:g}, and hardly anything else counted")


HERE = ("loss", "branches", "causal", "gradients")
FAULTS = (
    Fault("experts choose their tokens", "experts", experts_choose, accepted=HERE, kinds=ONLY, abnormal=LEAK),
    Fault("router's softmax over the tokens", "experts", softmax_over_tokens, accepted=HERE, kinds=ONLY, abnormal=LEAK),
    Fault(
        "balance loss too strong",
        "experts",
        balance_too_strong,
        accepted=("training", "weights", *HERE),
        kinds=ONLY,
    ),
)
