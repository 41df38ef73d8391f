"""Sinkhorn's iteration: columns and rows of exp(logits) normalised in turn, which makes the matrix doubly stochastic.

Differentiated step by step, twenty iterations of a 4 x 4 matrix keep a hundred small tensors; here only the logits are
kept and the iteration is run again in the backward pass. Tokens are the last axis, so that every step is a few long
vectors: n = 4 numbers are too few for a reduction of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_reads import transformed
from normlab.schemes.norms import precise


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """[..., n, n] -> doubly stochastic (rows exactly, columns in the limit), in float32 or better."""
    n = logits.shape[-1]
    tokens_last = precise(logits).reshape(-1, n * n).t().reshape(n, n, -1)
    if transformed():
        balanced = _steps(_start(tokens_last), iterations)[-1]
    else:
        balanced = _Sinkhorn.apply(tokens_last, iterations)
    return balanced.reshape(n * n, -1).t().reshape(logits.shape)


def _start(logits: Tensor) -> Tensor:
    """The first normalisation of columns, in the log domain: no entry overflows, whatever the logits."""
    return torch.softmax(logits, dim=0)


def _steps(x: Tensor, iterations: int) -> list[Tensor]:
    """The matrix after each half step, the first (columns) being `x`."""
    found, tiny = [x], torch.finfo(x.dtype).tiny
    for step in range(1, 2 * iterations):
        # A column whose every entry has underflowed stays zero instead of becoming 0/0.
        x = x / x.sum(step % 2, keepdim=True).clamp_min(tiny)
        found.append(x)
    return found


class _Sinkhorn(torch.autograd.Function):
    """y = x / sum(x):  dx = (dy - sum(dy y)) / sum(x), from the last half step to the first"""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.iterations = iterations
        x, tiny = _start(logits), torch.finfo(logits.dtype).tiny
        for step in range(1, 2 * iterations):
            x = x / x.sum(step % 2, keepdim=True).clamp_min(tiny)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        states = _steps(_start(logits), ctx.iterations)
        tiny = torch.finfo(logits.dtype).tiny
        for step in range(2 * ctx.iterations - 1, 0, -1):
            axis, x, y = step % 2, states[step - 1], states[step]
            grad = (grad - (grad * y).sum(axis, keepdim=True)) / x.sum(axis, keepdim=True).clamp_min(tiny)
        y = states[0]
        return y * (grad - (grad * y).sum(0, keepdim=True)), None
