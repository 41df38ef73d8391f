"""What the weights alone tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.trace.hooks import Layout

ALIKE = 0.99  # cosine between the weights of neighbours


@dataclass(frozen=True)
class Twin:
    """Two neighbours whose weights are the same, or nearly."""

    layer: int
    next: int
    cosine: float


def nonfinite_weights(model: nn.Module) -> list[str]:
    """Names of parameters that hold NaN or infinities."""
    return [name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all())]


@torch.no_grad()
def duplicates(layout: Layout) -> list[Twin]:
    """Neighbours whose matrices point the same way.

    One module that is applied often (ALBERT) is a design, not a copy, and is not listed.
    """
    found = []
    for i in range(len(layout.layers) - 1):
        a, b = ([p.flatten() for p in layout.layers[j][1].parameters() if p.dim() >= 2] for j in (i, i + 1))
        if not a or [p.shape for p in a] != [p.shape for p in b]:
            continue
        size = math.sqrt(_dot(a, a) * _dot(b, b))
        if size > 0 and _dot(a, b) / size > ALIKE:
            found.append(Twin(i, i + 1, _dot(a, b) / size))
    return found


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return sum(float(p.double() @ q.double()) for p, q in zip(a, b, strict=True))
