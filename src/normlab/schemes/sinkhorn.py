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

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_kernels import usable
from normlab.schemes.depth_reads import transformed
from normlab.schemes.norms import precise, traced
from normlab.schemes.ops.balance import balanced, balanced_backward
from normlab.schemes.ops.depth import Context, fuses
from normlab.schemes.ops.streams import kernel_sinkhorn
from normlab.schemes.ops.streams_device import device_sinkhorn


def sinkhorn(logits: Tensor, iterations: int, *, eps: float = 0.0) -> Tensor:
    """[..., n, n] -> doubly stochastic (rows exactly, columns in the limit), in float32 or better.

    `eps` as DeepSeek-V4 ships it: added to the matrix after the first normalisation, and to every later sum.
    """
    n = logits.shape[-1]
    exact = precise(logits).reshape(-1, n, n)
    if not traced() and (kernels := usable(exact)) is not None:
        return kernel_sinkhorn(exact.contiguous(), iterations, eps, kernels).view(logits.shape)
    if not traced() and fuses(exact):
        return device_sinkhorn(exact, iterations, eps).view(logits.shape)
    tokens_last = precise(logits).reshape(-1, n * n).t().reshape(n, n, -1)
    if transformed():
        found = _in_logarithms(tokens_last, iterations, eps)
    else:
        found = _Sinkhorn.apply(tokens_last, iterations, eps)  # type: ignore[no-untyped-call]
    return found.reshape(n * n, -1).t().reshape(logits.shape)


def _in_logarithms(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The same by plain operations whose derivatives are finite too."""
    x = torch.log_softmax(logits, dim=0)
    x = torch.logaddexp(x, x.new_tensor(math.log(eps))) if eps else x
    for step in range(1, 2 * iterations):
        total = torch.logsumexp(x, dim=step % 2, keepdim=True)
        x = x - (torch.logaddexp(total, total.new_tensor(math.log(eps))) if eps else total)
    return x.exp()


class _Sinkhorn(torch.autograd.Function):
    """Keeps the logits alone, and iterates again in the backward pass."""

    @staticmethod
    def forward(ctx: Context, logits: Tensor, iterations: int, eps: float) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.how = iterations, eps
        return balanced(logits, iterations, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        return balanced_backward(logits, grad, *ctx.how), None, None
