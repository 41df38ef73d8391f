"""The passes of schemes with n streams in Triton, for CUDA and ROCm: read with its norm, write, Sinkhorn.

Twins of the functions in streams_device.py, which has the formulas; see triton_shared.py for what holds of all kernels.
A stream is loaded once by a read, once by a write, and once by each of their backwards.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlab.schemes.ops.depth_plain import Pair
from normlab.schemes.ops.triton_shared import FUSE, block_of, programs_of, rows_of, through_norm, warps_of


@triton.jit
def _read_forward(x, x_token, x_stream, pre, gain, y, r, d, eps, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    mixed = tl.zeros((BLOCK,), dtype=tl.float32)
    for n in tl.static_range(N):
        row = tl.load(x + i * x_token + n * x_stream + k, mask=inside, other=0.0).to(tl.float32)
        mixed += tl.load(pre + i * N + n).to(tl.float32) * row
    scale = 1 / tl.sqrt(tl.sum(mixed * mixed) / d + eps)
    g = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + i * d + k, (mixed * scale * g).to(y.dtype.element_ty), mask=inside)
    tl.store(r + i, scale)


@triton.jit
def _read_backward(
    dy, dy_stride, x, x_token, x_stream, pre, gain, r, through, dx, dpre, sums, tokens, d, PAST: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    dgain = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(first, tokens, tl.num_programs(0)):
        mixed = tl.zeros((BLOCK,), dtype=tl.float32)
        for n in tl.static_range(N):
            row = tl.load(x + i * x_token + n * x_stream + k, mask=inside, other=0.0).to(tl.float32)
            mixed += tl.load(pre + i * N + n).to(tl.float32) * row
        up = tl.load(dy + i * dy_stride + k, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(r + i)
        dgain += up * mixed * scale
        up *= tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
        up = through_norm(up, mixed, scale, d)
        for n in tl.static_range(N):
            row = tl.load(x + i * x_token + n * x_stream + k, mask=inside, other=0.0).to(tl.float32)
            tl.store(dpre + i * N + n, tl.sum(up * row).to(dpre.dtype.element_ty))
            down = tl.load(pre + i * N + n).to(tl.float32) * up
            if PAST:
                down += tl.load(through + (i * N + n) * d + k, mask=inside, other=0.0).to(tl.float32)
            tl.store(dx + (i * N + n) * d + k, down.to(dx.dtype.element_ty), mask=inside)
    tl.store(sums + first * d + k, dgain, mask=inside)


@triton.jit
def _write_forward(
    x, x_token, x_stream, y, y_stride, res, post, out, d, MIXED: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = k < d
    added = tl.load(y + i * y_stride + k, mask=inside, other=0.0).to(tl.float32)
    if MIXED:
        # Rows of the result against streams: each stream is loaded once, into a tile of all results.
        s = tl.arange(0, N)
        total = tl.load(post + i * N + s).to(tl.float32)[:, None] * added[None, :]
        for j in tl.static_range(N):
            row = tl.load(x + i * x_token + j * x_stream + k, mask=inside, other=0.0).to(tl.float32)
            total += tl.load(res + (i * N + s) * N + j).to(tl.float32)[:, None] * row[None, :]
        place = out + (i * N + s)[:, None] * d + k[None, :]
        tl.store(place, total.to(out.dtype.element_ty), mask=inside[None, :] & (s >= 0)[:, None])
    else:
        for n in tl.static_range(N):
            row = tl.load(x + i * x_token + n * x_stream + k, mask=inside, other=0.0).to(tl.float32)
            one = row + tl.load(post + i * N + n).to(tl.float32) * added
            tl.store(out + (i * N + n) * d + k, one.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _write_backward(
    grad, x, x_token, x_stream, y, y_stride, res, post, dx, dy, parts, tokens, d, MIXED: tl.constexpr, N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = k < d
    s = tl.arange(0, N)
    up = tl.load(grad + (i * N + s)[:, None] * d + k[None, :], mask=inside[None, :] & (s >= 0)[:, None], other=0.0).to(
        tl.float32
    )
    p = tl.load(post + i * N + s).to(tl.float32)
    tl.store(dy + i * d + k, tl.sum(p[:, None] * up, axis=0).to(dy.dtype.element_ty), mask=inside)
    added = tl.load(y + i * y_stride + k, mask=inside, other=0.0).to(tl.float32)
    own = parts + (tl.program_id(1) * tokens + i) * N * (N + 1)  # [streams, n + 1]: dres, then dpost
    tl.store(own + s * (N + 1) + N, tl.sum(up * added[None, :], axis=1))
    if MIXED:
        for j in tl.static_range(N):
            row = tl.load(x + i * x_token + j * x_stream + k, mask=inside, other=0.0).to(tl.float32)
            tl.store(own + s * (N + 1) + j, tl.sum(up * row[None, :], axis=1))
            down = tl.sum(tl.load(res + (i * N + s) * N + j).to(tl.float32)[:, None] * up, axis=0)
            tl.store(dx + (i * N + j) * d + k, down.to(dx.dtype.element_ty), mask=inside)


def read_forward(x: Tensor, pre: Tensor, gain: Tensor, eps: float) -> Pair:
    (tokens, n, d), x = x.shape, rows_of(x)
    y, r, block = x.new_empty(tokens, d), x.new_empty(tokens, dtype=torch.float32), block_of(d)
    _read_forward[(tokens,)](
        *(x, x.stride(0), x.stride(1), pre.contiguous(), gain, y, r, d, eps), N=n, BLOCK=block,
        num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    return y, r


def read_backward(
    dy: Tensor, x: Tensor, pre: Tensor, gain: Tensor, r: Tensor, through: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    (tokens, n, d), x, dy, pre = x.shape, rows_of(x), rows_of(dy), pre.contiguous()
    block, programs = block_of(d), programs_of(x, tokens)
    dx, dpre, sums = x.new_empty(tokens, n, d), torch.empty_like(pre), x.new_empty(programs, d, dtype=torch.float32)
    past = dx if through is None else through.contiguous()
    _read_backward[(programs,)](
        *(dy, dy.stride(0), x, x.stride(0), x.stride(1), pre, gain, r, past, dx, dpre, sums, tokens, d),
        PAST=through is not None, N=n, BLOCK=block, num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    return dx, dpre, sums.sum(0).to(gain.dtype)


def write_forward(x: Tensor, y: Tensor, res: Tensor | None, post: Tensor) -> Tensor:
    (tokens, n, d), x, y = x.shape, rows_of(x), rows_of(y)
    out, width = x.new_empty(tokens, n, d), min(block_of(d), 1024)
    _write_forward[(tokens, triton.cdiv(d, width))](
        *(x, x.stride(0), x.stride(1), y, y.stride(0), post if res is None else res.contiguous(), post.contiguous()),
        *(out, d), MIXED=res is not None, N=n, WIDTH=width, num_warps=4, **FUSE,
    )  # fmt: skip
    return out


def write_backward(
    grad: Tensor, x: Tensor, y: Tensor, res: Tensor | None, post: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (tokens, n, d), x, y, grad = x.shape, rows_of(x), rows_of(y), grad.contiguous()
    dx = grad if res is None else x.new_empty(tokens, n, d)
    dy, width = x.new_empty(tokens, d), min(block_of(d), 1024)
    parts = x.new_empty(triton.cdiv(d, width), tokens, n, n + 1, dtype=torch.float32)
    _write_backward[(tokens, triton.cdiv(d, width))](
        *(grad, x, x.stride(0), x.stride(1), y, y.stride(0), post if res is None else res.contiguous()),
        *(post.contiguous(), dx, dy, parts, tokens, d),
        MIXED=res is not None, N=n, WIDTH=width, num_warps=4, **FUSE,
    )  # fmt: skip
    total = parts.sum(0)
    return dx, dy, total[..., :n].to(post.dtype), total[..., n].to(post.dtype)


# -- Sinkhorn: tiles [tokens, rows, columns]; sinkhorn.py has the derivation -------------------------------------------------
@triton.jit
def _start(logits, EPS: tl.constexpr):
    e = tl.exp(logits - tl.max(logits, axis=1)[:, None, :])
    x = e / tl.sum(e, axis=1)[:, None, :]
    return x + EPS


@triton.jit
def _half_step(x, logits, FIRST: tl.constexpr, ROWS: tl.constexpr, EPS: tl.constexpr):
    if ROWS:
        total = tl.sum(x, axis=2)[:, :, None]
    else:
        total = tl.sum(x, axis=1)[:, None, :]
    if EPS > 0:
        return x / (total + EPS)
    y = x / tl.maximum(total, 1e-30)
    if FIRST:  # a row that is lost in the columns' softmax is still known to its logarithms
        top = tl.max(logits, axis=1)[:, None, :]
        kept = logits - top - tl.log(tl.sum(tl.exp(logits - top), axis=1))[:, None, :]
        e = tl.exp(kept - tl.max(kept, axis=2)[:, :, None])
        y = tl.where(total < 1e-30, e / tl.sum(e, axis=2)[:, :, None], y)
    return y


@triton.jit
def _sinkhorn(
    logits, grad, states, out, tokens, BACK: tl.constexpr, STEPS: tl.constexpr, EPS: tl.constexpr, N: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """The iteration; with BACK each state is kept, and then dL_x = dL_y - y sum(dL_y) from the last to the first."""
    i = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    n = tl.arange(0, N)
    at = (i[:, None, None] * N + n[None, :, None]) * N + n[None, None, :]
    inside = (i < tokens)[:, None, None] & (n >= 0)[None, :, None] & (n >= 0)[None, None, :]
    size = tokens.to(tl.int64) * N * N
    known = tl.load(logits + at, mask=inside, other=0.0)
    x = _start(known, EPS)
    if BACK:
        tl.store(states + at, x, mask=inside)
    x = _half_step(x, known, True, True, EPS)
    if BACK:
        tl.store(states + size + at, x, mask=inside)
    for step in range(2, STEPS, 2):
        x = _half_step(x, known, False, False, EPS)
        if BACK:
            tl.store(states + step * size + at, x, mask=inside)
        x = _half_step(x, known, False, True, EPS)
        if BACK:
            tl.store(states + (step + 1) * size + at, x, mask=inside)
    if BACK:
        g = tl.load(grad + at, mask=inside, other=0.0) * x
        for back in range(0, STEPS, 2):
            step = STEPS - 1 - back
            y = tl.load(states + step * size + at, mask=inside, other=0.0)
            g -= y * tl.sum(g, axis=2)[:, :, None]
            y = tl.load(states + (step - 1) * size + at, mask=inside, other=1.0)
            if EPS > 0:
                p = tl.where(step == 1, y - EPS, y)
                g *= p / y
                y = p
            g -= y * tl.sum(g, axis=1)[:, None, :]
        x = g
    tl.store(out + at, x, mask=inside)


def sinkhorn(logits: Tensor, grad: Tensor | None, iterations: int, eps: float) -> Tensor:
    """The doubly stochastic matrices of logits [tokens, n, n]; with a gradient of them, that of the logits."""
    (tokens, n, _), logits = logits.shape, logits.contiguous()
    out, some = torch.empty_like(logits), max(1, triton.next_power_of_2(256 // (n * n)))
    states = logits.new_empty(2 * iterations, tokens, n, n) if grad is not None else out
    _sinkhorn[(triton.cdiv(tokens, some),)](
        *(logits, out if grad is None else grad.contiguous(), states, out, tokens), BACK=grad is not None,
        STEPS=2 * iterations, EPS=eps, N=n, TOKENS=some, num_warps=4, **FUSE,
    )  # fmt: skip
    return out
