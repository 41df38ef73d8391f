"""Sinkhorn's iteration and its derivative by plain operations, on [n, n, tokens]; sinkhorn.py has the derivation."""

from __future__ import annotations

import torch
from torch import Tensor

SMALL = 1e-30  # a row's sum below this has lost its digits to underflow


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


def balanced(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The iteration on [n, n, tokens]."""
    x = _start(logits, eps)
    for step in range(1, 2 * iterations):
        x = _half_step(x, step, logits, eps)
    return x


def balanced_backward(logits: Tensor, grad: Tensor, iterations: int, eps: float) -> Tensor:
    """dL_x = dL_y - y sum(dL_y), from the last half step to the first; the first is a softmax of the logits (+ eps)"""
    states = [_start(logits, eps)]
    for step in range(1, 2 * iterations):
        states.append(_half_step(states[-1], step, logits, eps))
    grad = grad * states[-1]
    for step in range(2 * iterations - 1, 0, -1):
        grad = grad - states[step] * grad.sum(step % 2, keepdim=True)
    y = states[0]
    if eps:  # y = p + eps, p the softmax
        p = y - eps
        grad = grad * (p / y)
        y = p
    return grad - y * grad.sum(0, keepdim=True)
