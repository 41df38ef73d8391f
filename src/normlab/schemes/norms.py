"""Norms, in one place and with explicit precision: statistics are taken in float32 (or float64), never below.

The schemes own every norm of the residual path, so norms live beside them; attention and FFN borrow from here.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from normlab.schemes.depth_kernels import usable

NormKind = Literal["rmsnorm", "layernorm", "dyt", "derf", "l2"]


class Gained(nn.Module):
    """A norm with one learned gain per coordinate, 1 at the start."""

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps:g}"


class RMSNorm(Gained):
    """g x / sqrt(mean(x^2) + eps)  (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """g x / sqrt(mean(x^2) + eps) over the last axis, with the statistics of `precise`, in the type of x.

    CPUs have no kernel for it: `F.rms_norm` takes a dozen passes over memory there, and two to three times as long as
    `_RMSNorm`. Compilers fuse the plain form, torch.func needs it to transform it, and GPUs have a kernel.
    """
    if x.device.type == "cpu" and x.is_floating_point() and not traced():
        return _RMSNorm.apply(x, weight, eps)
    if x.dtype == weight.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    return (precise(x) * inverse_rms(x, eps) * precise(weight)).to(x.dtype)  # F.rms_norm warns of mixed types


def traced() -> bool:
    """Does a compiler, torch.func (vmap, grad, jvp) or forward-mode differentiation look into this call?

    Then an autograd.Function of ours gives way to plain operations, which all of them understand.
    """
    return (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


class Scale(nn.Module):
    """In the place of a scheme's norm, where a model has its own: a number that makes h as large as the plain stream."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x if self.factor == 1.0 else x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


def watched(module: nn.Module) -> bool:
    """Does somebody's hook expect this module to be called?"""
    every = nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or every._global_forward_hooks
        or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks
    )


class _RMSNorm(torch.autograd.Function):
    """y = x r g with r = 1/rms, which is all that the backward pass needs beside x and g:

        dg = sum over tokens of (dy x) r        dx = r (g dy) - x r^3 (dy x . g) / d

    Products with vectors sum without a temporary; `mv` is also left alone by autocast, as `mm` is not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.eps, d = eps, x.shape[-1]
        if (kernels := usable(x, weight)) is not None:
            y, r = kernels.rms_forward(x.reshape(-1, d), weight, eps)
            r = r.view(*x.shape[:-1], 1)
            ctx.save_for_backward(x, weight, r)
            return y.view(x.shape)
        # vector_norm reads x once; squaring it would write it once more.
        exact = precise(x)
        r = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_().div_(d).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        return (exact * r).mul_(precise(weight)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, r = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted, and r depends on x
            r = inverse_rms(x, ctx.eps)
        elif (kernels := usable(x, weight, dy)) is not None:
            d = x.shape[-1]
            dx, dg = kernels.rms_backward(dy.reshape(-1, d), x.reshape(-1, d), weight, r, None)
            return dx.view(x.shape), dg, None
        dy, exact, g, d = precise(dy), precise(x), precise(weight), x.shape[-1]
        product = (dy * exact).reshape(-1, d)
        dg = torch.mv(product.t(), r.flatten())
        along = torch.mv(product, g).view_as(r)
        dx = (dy * g).mul_(r).addcmul_(exact, along * r**3, value=-1 / d)
        return dx.to(x.dtype), dg.to(weight.dtype), None


class L2Norm(Gained):
    """g x / sqrt(|x|^2 + eps): RMSNorm without the factor sqrt(d)."""

    def forward(self, x: Tensor) -> Tensor:
        exact = precise(x)
        return (exact * torch.rsqrt(exact.square().sum(-1, keepdim=True) + self.eps) * precise(self.weight)).to(x.dtype)


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


class DynamicErf(nn.Module):
    """Derf: g erf(alpha x + s) + b, alpha = 0.5 and s = 0 at the start, both scalars  (arXiv 2512.10938 and its code)."""

    def __init__(self, dim: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        self.dim, self.initial_alpha = dim, alpha
        self.alpha = nn.Parameter(torch.empty(1))
        self.shift = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.initial_alpha)
        nn.init.zeros_(self.shift)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.erf(self.alpha * x + self.shift) + self.bias


def make_norm(kind: NormKind, dim: int, *, eps: float) -> nn.Module:
    if kind == "rmsnorm":
        return RMSNorm(dim, eps=eps)
    if kind == "layernorm":
        return LayerNorm(dim, eps=eps)
    if kind == "derf":
        return DynamicErf(dim)
    if kind == "l2":
        return L2Norm(dim, eps=eps)
    return DynamicTanh(dim)


def unit(x: Tensor, *, dim: int = -1) -> Tensor:
    """x / |x|, the norm of nGPT (no gain, no eps beyond the smallest that keeps 0 finite)."""
    exact = precise(x)
    return F.normalize(exact, dim=dim, eps=torch.finfo(exact.dtype).tiny ** 0.5).to(x.dtype)


def precise(x: Tensor) -> Tensor:
    """x in float32, or as it is where it is float64: the precision of statistics and of softmax over depth."""
    return x if x.dtype == torch.float64 else x.float()


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept as an axis of one."""
    return torch.rsqrt(precise(x).square().mean(-1, keepdim=True) + eps)
