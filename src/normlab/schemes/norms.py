"""Norms, in one place and with explicit precision: statistics are taken in float32 (or float64), never below.

The schemes own every norm of the residual path, so norms live beside them; attention and FFN borrow from here.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NormKind = Literal["rmsnorm", "layernorm", "dyt"]


class RMSNorm(nn.Module):
    """g x / sqrt(mean(x^2) + eps)  (Zhang and Sennrich 2019)."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.dim,), self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps:g}"


class LayerNorm(nn.Module):
    """g (x - mean(x)) / sqrt(var(x) + eps) + b  (Ba, Kiros and Hinton 2016)."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps:g}"


class DynamicTanh(nn.Module):
    """DyT: g tanh(alpha x) + b, alpha = 0.5 at the start  (Zhu et al. 2025). Not a norm: it takes no statistics."""

    def __init__(self, dim: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        self.dim, self.initial_alpha = dim, alpha
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.initial_alpha)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x) + self.bias


def make_norm(kind: NormKind, dim: int, *, eps: float) -> nn.Module:
    if kind == "rmsnorm":
        return RMSNorm(dim, eps=eps)
    if kind == "layernorm":
        return LayerNorm(dim, eps=eps)
    return DynamicTanh(dim)


def unit(x: Tensor, *, dim: int = -1) -> Tensor:
    """x / |x|, the norm of nGPT (no gain, no eps beyond the smallest that keeps 0 finite)."""
    return F.normalize(x, dim=dim, eps=torch.finfo(x.dtype).tiny ** 0.5)


def precise(x: Tensor) -> Tensor:
    """x in float32, or as it is where it is float64: the precision of statistics and of softmax over depth."""
    return x if x.dtype == torch.float64 else x.float()


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept as an axis of one."""
    return torch.rsqrt(precise(x).square().mean(-1, keepdim=True) + eps)
