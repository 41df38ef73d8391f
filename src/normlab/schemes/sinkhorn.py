"""Sinkhorn's iteration: columns and rows of exp(logits) normalised in turn, which makes the matrix doubly stochastic.

Differentiated step by step, twenty iterations of a 4 x 4 matrix keep a hundred small tensors; here only the logits are
kept and the iteration is run again in the backward pass. Tokens are the last axis, so that every step is a few long
vectors: n = 4 numbers are too few for a reduction of their own.

The derivative is taken with respect to the logarithm L of the matrix: y = x / sum(x) is L_y = L_x - log sum(exp L_x), so

    dL_x = dL_y - y sum(dL_y),        dL = y dy at the end

with the matrix y of *every* half step and no division, hence no overflow. The textbook form divides by sums that vanish
where a row has underflowed, and gave infinities elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_kernels import usable
from normlab.schemes.depth_reads import transformed
from normlab.schemes.norms import precise, traced
from normlab.schemes.ops.streams import kernel_sinkhorn

SMALL = 1e-30  # a row's sum below this has lost its digits to underflow


def sinkhorn(logits: Tensor, iterations: int, *, eps: float = 0.0) -> Tensor:
    """[..., n, n] -> doubly stochastic (rows exactly, columns in the limit), in float32 or better.

    `eps` as DeepSeek-V4 ships it: added to the matrix after the first normalisation, and to every later sum.
    """
    n = logits.shape[-1]
    exact = precise(logits).reshape(-1, n, n)
    if not traced() and (kernels := usable(exact)) is not None:
        return kernel_sinkhorn(exact.contiguous(), iterations, eps, kernels).view(logits.shape)
    tokens_last = precise(logits).reshape(-1, n * n).t().reshape(n, n, -1)
    if transformed():
        balanced = _in_logarithms(tokens_last, iterations, eps)
    else:
        balanced = _Sinkhorn.apply(tokens_last, iterations, eps)  # type: ignore[no-untyped-call]
    return balanced.reshape(n * n, -1).t().reshape(logits.shape)


def _in_logarithms(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The same by plain operations whose derivatives are finite too."""
    x = torch.log_softmax(logits, dim=0)
    x = torch.logaddexp(x, x.new_tensor(math.log(eps))) if eps else x
    for step in range(1, 2 * iterations):
        total = torch.logsumexp(x, dim=step % 2, keepdim=True)
        x = x - (torch.logaddexp(total, total.new_tensor(math.log(eps))) if eps else total)
    return x.exp()


def _start(logits: Tensor, eps: float) -> Tensor:
    x = torch.softmax(logits, dim=0)
    return x + eps if eps else x


def _half_step(x: Tensor, step: int, logits: Tensor, eps: float) -> Tensor:
    """Rows where `step` is odd, columns where it is even; the columns of `_start` count as step 0."""
    total = x.sum(step % 2, keepdim=True)
    if eps:
        return x / (total + eps)
    y = x / total.clamp_min(SMALL)
    if step > 1:
        return y
    # A row may be so much smaller than all others that nothing is left of it in the columns' softmax; its logarithms
    # still know its shape. From here on every sum lies between 1/n^2 and n.
    rescued = torch.softmax(torch.log_softmax(logits, dim=0), dim=1)
    return torch.where(total < SMALL, rescued, y)


class _Sinkhorn(torch.autograd.Function):
    """dL_x = dL_y - y sum(dL_y), from the last half step to the first; the first is a softmax of the logits (+ eps)"""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.iterations, ctx.eps = iterations, eps
        x = _start(logits, eps)
        for step in range(1, 2 * iterations):
            x = _half_step(x, step, logits, eps)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        states = [_start(logits, ctx.eps)]
        for step in range(1, 2 * ctx.iterations):
            states.append(_half_step(states[-1], step, logits, ctx.eps))
        grad = grad * states[-1]
        for step in range(2 * ctx.iterations - 1, 0, -1):
            grad = grad - states[step] * grad.sum(step % 2, keepdim=True)
        y = states[0]
        if ctx.eps:  # y = p + eps, p the softmax
            p = y - ctx.eps
            grad = grad * (p / y)
            y = p
        return grad - y * grad.sum(0, keepdim=True), None, None
