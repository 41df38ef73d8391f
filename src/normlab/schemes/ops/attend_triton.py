"""One read over depth in Triton, for CUDA and ROCm: a block's answer merged with the open sum, or all sources at once.

Twins of the functions in depth_plain.py, which has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlab.schemes.ops.depth_plain import Pair
from normlab.schemes.ops.triton_shared import FUSE, block_of, programs_of, rows_of, through_norm, warps_of


# -- merge -------------------------------------------------------------------------------------------------------------
@triton.jit
def _merge_forward(
    o, o_stride, lse, lse_stride, b, b_stride, query, gain, h, stats, tokens, d, eps, norm_eps, NORMED: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    row = tl.load(b + i * b_stride + k, mask=inside, other=0.0).to(tl.float32)
    base = tl.load(o + i * o_stride + k, mask=inside, other=0.0).to(tl.float32)
    s = tl.sum(row * tl.load(query + k, mask=inside, other=0.0))
    r = 1.0
    if NORMED:
        r = 1 / tl.sqrt(tl.sum(row * row) / d + eps)
    s *= r
    gate = tl.sigmoid(s - tl.load(lse + i * lse_stride))
    mixed = base + gate * (row - base)
    scale = 1.0
    if NORM:
        scale = 1 / tl.sqrt(tl.sum(mixed * mixed) / d + norm_eps)
        mixed *= scale * tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(h + i * d + k, mixed.to(h.dtype.element_ty), mask=inside)
    tl.store(stats + i, r)
    tl.store(stats + tokens + i, s)
    tl.store(stats + 2 * tokens + i, gate)
    tl.store(stats + 3 * tokens + i, scale)


@triton.jit
def _merge_backward(
    grad, grad_stride, o, o_stride, b, b_stride, query, gain, stats, through, through_stride, grad_o, dlse, db, sums,
    tokens, d, NORMED: tl.constexpr, NORM: tl.constexpr, PAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    dquery = tl.zeros((BLOCK,), dtype=tl.float32)
    dgain = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(first, tokens, tl.num_programs(0)):
        base = tl.load(o + i * o_stride + k, mask=inside, other=0.0).to(tl.float32)
        gap = tl.load(b + i * b_stride + k, mask=inside, other=0.0).to(tl.float32) - base
        up = tl.load(grad + i * grad_stride + k, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(stats + 2 * tokens + i)
        if NORM:
            scale = tl.load(stats + 3 * tokens + i)
            mixed = base + gate * gap
            dgain += up * mixed * scale
            up *= tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
            up = through_norm(up, mixed, scale, d)
        ds = tl.sum(up * gap) * gate * (1 - gate)
        tl.store(dlse + i, -ds)
        tl.store(grad_o + i * d + k, (up - gate * up).to(grad_o.dtype.element_ty), mask=inside)
        row = tl.load(b + i * b_stride + k, mask=inside, other=0.0).to(tl.float32)  # again: registers are short
        r = tl.load(stats + i)
        pull = ds * r
        down = gate * up + pull * tl.load(query + k, mask=inside, other=0.0)
        if NORMED:
            down -= row * (pull * r * tl.load(stats + tokens + i) / d)
        if PAST:
            down += tl.load(through + i * through_stride + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(db + i * d + k, down.to(db.dtype.element_ty), mask=inside)
        dquery += pull * row
    tl.store(sums + (2 * first) * d + k, dquery, mask=inside)
    if NORM:
        tl.store(sums + (2 * first + 1) * d + k, dgain, mask=inside)


def merge_forward(
    o: Tensor, lse: Tensor, b: Tensor, query: Tensor, eps: float | None, gain: Tensor | None, norm_eps: float
) -> Pair:
    (tokens, d), o, b = b.shape, rows_of(o), rows_of(b)
    h, stats, block = b.new_empty(tokens, d), b.new_empty(4, tokens, dtype=torch.float32), block_of(d)
    _merge_forward[(tokens,)](
        *(o, o.stride(0), lse, lse.stride(0), b, b.stride(0), query, query if gain is None else gain, h, stats),
        *(tokens, d, eps or 0.0, norm_eps),
        NORMED=eps is not None, NORM=gain is not None, BLOCK=block, num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    return h, stats


def merge_backward(
    grad: Tensor, o: Tensor, b: Tensor, query: Tensor, stats: Tensor, eps: float | None, gain: Tensor | None,
    through: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (tokens, d), programs, block = b.shape, programs_of(b, len(b)), block_of(b.shape[1])
    grad, o, b, past = rows_of(grad), rows_of(o), rows_of(b), rows_of(b if through is None else through)
    do, db, dlse = b.new_empty(tokens, d), b.new_empty(tokens, d), stats.new_empty(tokens)
    sums = stats.new_empty(programs, 2, d)
    _merge_backward[(programs,)](
        *(grad, grad.stride(0), o, o.stride(0), b, b.stride(0), query, query if gain is None else gain, stats),
        *(past, past.stride(0), do, dlse, db, sums, tokens, d),
        NORMED=eps is not None, NORM=gain is not None, PAST=through is not None, BLOCK=block,
        num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    total = sums[:, 0].sum(0) if gain is None else sums.sum(0)
    return do, dlse, db, total if gain is None else total[0], query if gain is None else total[1].to(gain.dtype)


# -- one read ----------------------------------------------------------------------------------------------------------
@triton.jit
def _attend_forward(
    logits, steps, sources, stride, gain, h, weights, scales, d, eps, mass, whole, N: tl.constexpr, NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    top = tl.load(logits[0] + i * steps[0])
    for n in tl.static_range(1, N):
        top = tl.maximum(top, tl.load(logits[n] + i * steps[n]))
    total = 0.0
    mixed = tl.zeros((BLOCK,), dtype=tl.float32)
    for n in tl.static_range(N):
        a = tl.exp(tl.load(logits[n] + i * steps[n]) - top)
        total += mass * a if n == 0 else a
        mixed += a * tl.load(sources[n] + i * stride + k, mask=inside, other=0.0).to(tl.float32)
    total /= whole
    mixed /= total
    for n in tl.static_range(N):
        tl.store(weights + i * N + n, tl.exp(tl.load(logits[n] + i * steps[n]) - top) / total)
    scale = 1.0
    if NORM:
        scale = 1 / tl.sqrt(tl.sum(mixed * mixed) / d + eps)
        mixed *= scale * tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(h + i * d + k, mixed.to(h.dtype.element_ty), mask=inside)
    tl.store(scales + i, scale)


@triton.jit
def _attend_backward(
    grad, grad_stride, weights, sources, stride, gain, scales, through, past_stride, down, dlogits, sums, tokens, d,
    PAST: tl.constexpr, N: tl.constexpr, NORM: tl.constexpr, LEAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    dgain = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(first, tokens, tl.num_programs(0)):
        at, past_at = i * stride + k, i * past_stride + k
        up = tl.load(grad + i * grad_stride + k, mask=inside, other=0.0).to(tl.float32)
        if NORM:  # h again, from sources that the second pass then finds in the cache
            mixed = tl.zeros((BLOCK,), dtype=tl.float32)
            for n in tl.static_range(N):
                row = tl.load(sources[n] + at, mask=inside, other=0.0).to(tl.float32)
                mixed += tl.load(weights + i * N + n) * row
            scale = tl.load(scales + i)
            if LEAN:  # rows this long leave no registers for a sum: it stays in the cache
                own = sums + tokens + first * d + k
                tl.store(own, tl.load(own, mask=inside, other=0.0) + up * mixed * scale, mask=inside)
            else:
                dgain += up * mixed * scale
            up *= tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
            up = through_norm(up, mixed, scale, d)
        mean = 0.0
        for n in tl.static_range(N):
            a = tl.load(weights + i * N + n)
            row = tl.load(sources[n] + at, mask=inside, other=0.0).to(tl.float32)
            dot = tl.sum(up * row)
            mean += a * dot
            tl.store(dlogits + n * tokens + i, dot)
            back = a * up
            if PAST[n]:
                back += tl.load(through[n] + past_at, mask=inside, other=0.0).to(tl.float32)
            tl.store(down[n] + i * d + k, back.to(down[n].dtype.element_ty), mask=inside)
        tl.store(sums + i, mean)
    if NORM and not LEAN:
        tl.store(sums + tokens + first * d + k, dgain, mask=inside)


def attend_forward(
    logits: Sequence[Tensor], sources: Sequence[Tensor], gain: Tensor | None, eps: float, mass: float, whole: float
) -> tuple[Tensor, Tensor, Tensor]:
    (stride, sources), n = _alike(sources), len(sources)
    (tokens, d), block = sources[0].shape, block_of(sources[0].shape[1])
    h = sources[0].new_empty(tokens, d)
    weights, scale = logits[0].new_empty(tokens, n), logits[0].new_empty(tokens)
    _attend_forward[(tokens,)](
        *(tuple(logits), tuple(l.stride(0) for l in logits), tuple(sources), stride),
        *(sources[0] if gain is None else gain, h, weights, scale, d, eps, mass, whole),
        N=n, NORM=gain is not None, BLOCK=block, num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    return h, weights, scale


def attend_backward(
    grad: Tensor, weights: Tensor, sources: Sequence[Tensor], gain: Tensor | None, scale: Tensor,
    through: Sequence[Tensor | None], mass: float, whole: float,
) -> tuple[Tensor, list[Tensor], Tensor]:  # fmt: skip
    grad, (stride, sources), n = rows_of(grad), _alike(sources), len(sources)
    (tokens, d), block, programs = grad.shape, block_of(grad.shape[1]), programs_of(grad, len(grad))
    down = [v.new_empty(tokens, d) for v in sources]
    past_stride, given = _alike([p for p in through if p is not None])
    rest = iter(given)
    past = [v if p is None else next(rest) for v, p in zip(sources, through, strict=True)]
    dlogits, sums = weights.new_empty(n, tokens), weights.new_zeros(tokens + programs * d)
    _attend_backward[(programs,)](
        *(grad, grad.stride(0), weights, tuple(sources), stride),
        *(grad if gain is None else gain, scale, tuple(past), past_stride, tuple(down), dlogits),
        *(sums, tokens, d),
        PAST=tuple(p is not None for p in through), N=n, NORM=gain is not None, LEAN=block > 4096, BLOCK=block,
        num_warps=min(8, warps_of(block)), **FUSE,
    )  # fmt: skip
    dgain = scale if gain is None else sums[tokens:].view(programs, d).sum(0).to(gain.dtype)
    mean = sums[:tokens] / whole
    return weights.t() * (dlogits - torch.stack([mass * mean, *[mean] * (n - 1)])), down, dgain


def _alike(tensors: Sequence[Tensor]) -> tuple[int, list[Tensor]]:
    """One stride for all: two dozen strides would not leave room in the registers."""
    strides = {t.stride() for t in tensors}
    if len(strides) == 1 and (stride := strides.pop())[-1] == 1:
        return stride[0], list(tensors)
    return (tensors[0].shape[-1] if tensors else 0), [t.contiguous() for t in tensors]
