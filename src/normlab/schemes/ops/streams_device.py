"""Reads, writes and Sinkhorn's iteration of schemes with n streams as operations of PyTorch, for devices other than CPUs.

    read    y = N(h), h = sum_k pre_k X_k            hands the streams on: the write's gradient is added in its pass
    write   X'_k = sum_j res_kj X_j + post_k y       without res: X_k + post_k y
    sinkhorn, of logits [tokens, n, n]

CUDA and ROCm have Triton (streams_triton.py) where n is a power of two; anything else gets the formulas below. CPUs have
streams.py, which takes the coefficients along. A meta device sees what a GPU would run.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_reads import Norm
from normlab.schemes.norms import precise
from normlab.schemes.ops.balance import balanced, balanced_backward
from normlab.schemes.ops.depth import Context, operation
from normlab.schemes.ops.depth_plain import Pair, rms_backward, rms_forward


@cache
def _triton() -> ModuleType | None:
    try:
        from normlab.schemes.ops import streams_triton
    except ImportError:
        return None
    return streams_triton


def _kernels(x: Tensor, n: int) -> Any:
    return _triton() if x.is_cuda and n & (n - 1) == 0 else None


@operation("(Tensor x, Tensor pre, Tensor gain, float eps) -> (Tensor, Tensor)")
def stream_read(x: Tensor, pre: Tensor, gain: Tensor, eps: float) -> Pair:
    if (kernels := _kernels(x, x.shape[1])) is not None:
        found: Pair = kernels.read_forward(x, pre, gain, eps)
        return found
    return rms_forward(torch.bmm(pre[:, None].to(x.dtype), x)[:, 0], gain, eps)


@operation("(Tensor dy, Tensor x, Tensor pre, Tensor gain, Tensor r, Tensor? through) -> (Tensor, Tensor, Tensor)")
def stream_read_backward(
    dy: Tensor, x: Tensor, pre: Tensor, gain: Tensor, r: Tensor, through: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if (kernels := _kernels(x, x.shape[1])) is not None:
        found: tuple[Tensor, Tensor, Tensor] = kernels.read_backward(dy, x, pre, gain, r, through)
        return found
    h = torch.bmm(pre[:, None].to(x.dtype), x)[:, 0]
    dh, dgain = rms_backward(dy, h, gain, r, None)
    dx = pre[..., None].to(x.dtype) * dh[:, None]
    dpre = torch.bmm(precise(x), precise(dh)[..., None])[..., 0].to(pre.dtype)
    return dx if through is None else dx.add_(through), dpre, dgain


@operation("(Tensor x, Tensor y, Tensor? res, Tensor post) -> Tensor")
def stream_write(x: Tensor, y: Tensor, res: Tensor | None, post: Tensor) -> Tensor:
    if (kernels := _kernels(x, x.shape[1])) is not None:
        found: Tensor = kernels.write_forward(x, y, res, post)
        return found
    added = post[..., None].to(x.dtype) * y[:, None]
    return added + x if res is None else torch.baddbmm(added, res.to(x.dtype), x)


@operation("(Tensor grad, Tensor x, Tensor y, Tensor? res, Tensor post) -> (Tensor, Tensor, Tensor, Tensor)")
def stream_write_backward(
    grad: Tensor, x: Tensor, y: Tensor, res: Tensor | None, post: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, y, res and post; those of x and res are empty without res."""
    if (kernels := _kernels(x, x.shape[1])) is not None:
        dx, dy, dres, dpost = kernels.write_backward(grad, x, y, res, post)
    else:
        wide = precise(grad)
        dy = torch.bmm(post[:, None].to(grad.dtype), grad)[:, 0]
        dpost = torch.bmm(wide, precise(y)[..., None])[..., 0].to(post.dtype)
        dx = grad if res is None else torch.bmm(res.to(grad.dtype).transpose(1, 2), grad)
        dres = torch.bmm(wide, precise(x).transpose(1, 2)).to(post.dtype)
    return (
        (dx, dy, dres.contiguous(), dpost.contiguous())
        if res is not None
        else (*_nothing(x), dy, *_nothing(x), dpost.contiguous())
    )


@operation("(Tensor logits, Tensor? grad, int iterations, float eps) -> Tensor")
def stream_sinkhorn(logits: Tensor, grad: Tensor | None, iterations: int, eps: float) -> Tensor:
    """The doubly stochastic matrices; with a gradient of them, the gradient of the logits."""
    if (kernels := _kernels(logits, logits.shape[-1])) is not None:
        found: Tensor = kernels.sinkhorn(logits, grad, iterations, eps)
        return found
    last = logits.permute(1, 2, 0)
    return (
        (
            balanced(last, iterations, eps)
            if grad is None
            else balanced_backward(last, grad.permute(1, 2, 0), iterations, eps)
        )
        .permute(2, 0, 1)
        .contiguous()
    )


def _nothing(x: Tensor) -> tuple[Tensor]:
    return (x.new_empty(0),)


@stream_read.registered.register_fake
def _(x: Tensor, pre: Tensor, gain: Tensor, eps: float) -> Pair:
    return x.new_empty(len(x), x.shape[-1]), x.new_empty(len(x), dtype=precise(x[:0]).dtype)


@stream_read_backward.registered.register_fake
def _(dy: Tensor, x: Tensor, pre: Tensor, gain: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), pre.new_empty(pre.shape), gain.new_empty(gain.shape)


@stream_write.registered.register_fake
def _(x: Tensor, y: Tensor, res: Tensor | None, post: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@stream_write_backward.registered.register_fake
def _(grad: Tensor, x: Tensor, y: Tensor, res: Tensor | None, post: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (tokens, n, d), empty = x.shape, x.new_empty(0)
    dy, dpost = x.new_empty(tokens, d), post.new_empty(post.shape)
    if res is None:
        return empty, dy, x.new_empty(0), dpost
    return x.new_empty(x.shape), dy, post.new_empty(tokens, n, n), dpost


@stream_sinkhorn.registered.register_fake
def _(logits: Tensor, grad: Tensor | None, iterations: int, eps: float) -> Tensor:
    return logits.new_empty(logits.shape)


class _ReadOnDevice(torch.autograd.Function):
    """y = N(sum_k pre_k X_k); also hands the streams on"""

    @staticmethod
    def forward(ctx: Context, x: Tensor, pre: Tensor, gain: Tensor, eps: float) -> Pair:
        y, r = stream_read.on(x)(x, pre, gain, eps)
        ctx.save_for_backward(x, pre, gain, r)
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, dy: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if dy is None:
            return through, None, None, None
        x, pre, gain, r = ctx.saved_tensors
        return *stream_read_backward.on(x)(dy, x, pre, gain, r, through), None


class _WriteOnDevice(torch.autograd.Function):
    """X'_k = sum_j res_kj X_j + post_k y"""

    @staticmethod
    def forward(ctx: Context, x: Tensor, y: Tensor, res: Tensor | None, post: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, res, post)
        return stream_write.on(x)(x, y, res, post)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, y, res, post = ctx.saved_tensors
        dx, dy, dres, dpost = stream_write_backward.on(x)(grad, x, y, res, post)
        return (grad, dy, None, dpost) if res is None else (dx, dy, dres, dpost)


class _SinkhornOnDevice(torch.autograd.Function):
    """[tokens, n, n] -> doubly stochastic; keeps the logits alone"""

    @staticmethod
    def forward(ctx: Context, logits: Tensor, iterations: int, eps: float) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.how = iterations, eps
        return stream_sinkhorn.on(logits)(logits, None, iterations, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        return stream_sinkhorn.on(logits)(logits, grad, *ctx.how), None, None


def device_read(x: Tensor, pre: Tensor, norm: Norm) -> Pair:
    """N(sum_k pre_k X_k) of streams [tokens, n, d], and the streams to be written to."""
    return _ReadOnDevice.apply(x, pre, norm.gain, norm.eps)


def device_write(x: Tensor, y: Tensor, res: Tensor | None, post: Tensor) -> Tensor:
    """res X + post (x) y; without res, X + post (x) y."""
    return _WriteOnDevice.apply(x, y, res, post)


def device_sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return _SinkhornOnDevice.apply(logits, iterations, eps)
