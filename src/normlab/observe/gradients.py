"""Where the loss gradient is, matrix by matrix, over one batch or many.

W1 is what stands before the activation of a layer's FFN (with its gate, where there is one), W2 what stands behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.model import Transformer
from normlab.model.attention import Attention
from normlab.model.layers import FeedForward


@dataclass(frozen=True)
class MatrixGradients:
    """Frobenius norms of the gradients, layer 1 first; over several batches the root of the mean square."""

    up: tuple[float, ...]
    """W1."""
    down: tuple[float, ...]
    """W2."""
    attention: tuple[float, ...]
    """All four matrices of the attention."""

    @property
    def layers(self) -> tuple[float, ...]:
        """All matrices of a layer together."""
        rows = zip(self.up, self.down, self.attention, strict=True)
        return tuple(math.sqrt(a * a + b * b + c * c) for a, b, c in rows)


def matrix_gradients(model: Transformer, losses: Iterable[Callable[[], Tensor]]) -> MatrixGradients:
    """Each of `losses` is one batch's loss. Parameters keep the gradients that they have."""
    ffns = [branch for branch in model.branches if isinstance(branch, FeedForward)]
    attentions = [branch for branch in model.branches if isinstance(branch, Attention)]
    groups: list[list[Tensor]] = [[ffn.up.weight] for ffn in ffns]
    groups += [[ffn.down.weight] for ffn in ffns]
    groups += [[attention.qkv.weight, attention.out.weight] for attention in attentions]
    parameters = [parameter for group in groups for parameter in group]
    totals, count = [0.0] * len(groups), 0
    for loss in losses:
        with torch.enable_grad():
            gradients = iter(torch.autograd.grad(loss(), parameters, allow_unused=True))
        for index, group in enumerate(groups):
            for _ in group:
                gradient = next(gradients)
                totals[index] += 0.0 if gradient is None else float(gradient.double().square().sum())
        count += 1
    norms = [math.sqrt(total / max(1, count)) for total in totals]
    n = len(ffns)
    return MatrixGradients(tuple(norms[:n]), tuple(norms[n : 2 * n]), tuple(norms[2 * n :]))


def last_over_first(norms: Sequence[float]) -> float:
    """How many times the first layer's gradient the last layer's is."""
    return norms[-1] / norms[0] if norms[0] > 0 else math.inf


def spread(norms: Sequence[float]) -> float:
    """Largest over smallest: 1 where all are equal."""
    return max(norms) / min(norms) if min(norms) > 0 else math.inf


def centre(norms: Sequence[float]) -> float:
    """Where the gradient sits on average: -0.5 the first layer, 0 the middle, 0.5 the last."""
    return sum(norm * i for i, norm in enumerate(norms)) / (sum(norms) * (len(norms) - 1)) - 0.5
