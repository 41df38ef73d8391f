"""The effect of a branch: how much what the head reads changes when the branch is taken out.

    effect_i  mean over tokens of |h' - h| / |h|

h is what the head multiplies, behind the final norm where there is one. h' is the same of a pass in which the output of
branch i is zero when the scheme writes it, and everything behind it is computed again.

A contribution |v| / |h| compares a branch with what it happens to read: a sum in Pre-Norm, a mean of sources in Attention
Residuals. An effect depends on the function alone: where two schemes compute the same function, their effects are equal.

Cost: with M branches M + 1 forward passes of the tokens given, as one batch, which few sequences and no gradient keep
small. It holds for every scheme, because a branch is taken out at a verb, and sequences of a batch do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from normlab.model.generate import evaluating
from normlab.observe.portrait import Observed

AT_ONCE = 8192  # tokens in one pass, which bounds the memory


class Headed(Observed, Protocol):
    """A model that shows what its head reads: a `Transformer`, or a swapped model."""

    def features(self, tokens: Tensor) -> Tensor: ...


@torch.no_grad()
def branch_effects(model: Headed, tokens: Tensor, *, at_once: int = AT_ONCE) -> list[float]:
    """The effect of every branch, in order, over all tokens [batch, time].

    The first copy of the tokens in a pass is the whole model, so that both are rounded alike. Weights and mode are left
    as they were; a branch without effect has 0, or a rounding error.
    """
    assert isinstance(model, nn.Module)
    count, size = len(model.sites), len(tokens)
    together = max(1, at_once // tokens.shape[:2].numel() - 1)
    effects: list[float] = []
    with evaluating(model):
        for first in range(0, count, together):
            branches = range(first, min(first + together, count))
            with _zeroed_by_copy(model.scheme, branches, size):
                features = model.features(torch.cat([tokens] * (1 + len(branches)))).double()
            whole, *others = features.split(size)
            effects += [float(((h - whole).norm(dim=-1) / whole.norm(dim=-1)).mean()) for h in others]
    return effects


@contextmanager
def _zeroed_by_copy(scheme: Any, branches: range, size: int) -> Iterator[None]:
    """While open, copy k of the tokens (of `size` sequences, from 1) lacks what the k-th of these branches writes."""
    write = scheme.write

    def without_one(stream: Any, y: Tensor, carry: Any, site: Any) -> Any:
        if site.index in branches:
            start = size * (1 + site.index - branches.start)
            y = y.clone()
            y[start : start + size] = 0
        return write(stream, y, carry, site)

    scheme.write = without_one
    try:
        yield
    finally:
        del scheme.write
