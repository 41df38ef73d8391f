"""How far a step moves the weights, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.model import Transformer


@dataclass(frozen=True)
class LayerWeights:
    """The matrices of every layer's branches, as they were."""

    layers: tuple[tuple[Tensor, ...], ...]


def layer_weights(model: Transformer) -> LayerWeights:
    """A copy of every branch's matrices, by layer."""
    per_layer = len(model.branches) // model.config.depth
    groups = [model.branches[i : i + per_layer] for i in range(0, len(model.branches), per_layer)]
    return LayerWeights(
        tuple(
            tuple(p.detach().clone() for branch in group for p in branch.parameters() if p.ndim == 2)
            for group in groups
        )
    )


def update_ratios(before: LayerWeights, after: LayerWeights) -> tuple[float, ...]:
    """|change| / |weights before|, of each layer's matrices together."""
    found = []
    for was, now in zip(before.layers, after.layers, strict=True):
        change = sum(float((b.double() - a.double()).square().sum()) for a, b in zip(was, now, strict=True))
        size = sum(float(a.double().square().sum()) for a in was)
        found.append(math.sqrt(change / size))
    return tuple(found)


@dataclass(frozen=True)
class FirstSteps:
    """By step (rows) and layer: how far the weights moved, and how far the function did."""

    ratios: tuple[tuple[float, ...], ...]
    outputs: tuple[float, ...]
    """By step: rms change of the logits on a fixed batch over their rms before the first step."""


def first_steps(model: Transformer, step: Callable[[], None], tokens: Tensor, *, steps: int = 10) -> FirstSteps:
    """`step()` makes one optimizer step of the model."""
    rows, moved = [], []
    with torch.no_grad():
        start = model(tokens)
    for _ in range(steps):
        before = layer_weights(model)
        step()
        rows.append(update_ratios(before, layer_weights(model)))
        with torch.no_grad():
            moved.append(float((model(tokens) - start).double().norm() / start.double().norm()))
    return FirstSteps(tuple(rows), tuple(moved))
