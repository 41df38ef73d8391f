"""The passes of fast reads over depth in Triton, for CUDA and ROCm: each source is loaded once for all queries of a block.

Twins of the functions in depth_plain.py, which has the formulas: RMSNorm, keys and mix here, one read in attend_triton.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlab.schemes.ops.attend_triton import attend_backward, attend_forward, merge_backward, merge_forward
from normlab.schemes.ops.depth_plain import Pair, single
from normlab.schemes.ops.triton_shared import (
    FUSE,
    aligned,
    block_of,
    deltas,
    programs_of,
    rows_of,
    through_norm,
    warps_of,
)

__all__ = [
    "attend_backward", "attend_forward", "keys_backward", "keys_forward", "merge_backward", "merge_forward", "mix_backward",
    "mix_forward", "rms_backward", "rms_forward",
]  # fmt: skip

CHUNK = 1024  # numbers of a row that one program of mix holds for every query


# -- RMSNorm -----------------------------------------------------------------------------------------------------------
@triton.jit
def _rms_forward(x, x_stride, gain, y, r, d, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    row = tl.load(x + i * x_stride + k, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(row * row) / d + eps)
    g = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + i * d + k, (row * scale * g).to(y.dtype.element_ty), mask=inside)
    tl.store(r + i, scale)


@triton.jit
def _rms_backward(
    dy, dy_stride, x, x_stride, gain, r, through, through_stride, dx, sums, tokens, d, PAST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < d
    g = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(first, tokens, tl.num_programs(0)):
        row = tl.load(x + i * x_stride + k, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(dy + i * dy_stride + k, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(r + i)
        total += up * row * scale
        up *= g
        down = through_norm(up, row, scale, d)
        if PAST:
            down += tl.load(through + i * through_stride + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + i * d + k, down.to(dx.dtype.element_ty), mask=inside)
    tl.store(sums + first * d + k, total, mask=inside)


def rms_forward(x: Tensor, gain: Tensor, eps: float) -> Pair:
    (tokens, d), x = x.shape, rows_of(x)
    y, r, block = x.new_empty(tokens, d), x.new_empty(tokens, dtype=torch.float32), block_of(d)
    _rms_forward[(tokens,)](x, x.stride(0), gain, y, r, d, eps, BLOCK=block, num_warps=warps_of(block), **FUSE)
    return y, r


def rms_backward(dy: Tensor, x: Tensor, gain: Tensor, r: Tensor, through: Tensor | None) -> Pair:
    (tokens, d), block, programs = x.shape, block_of(x.shape[1]), programs_of(x, len(x))
    dx, sums = x.new_empty(tokens, d), x.new_empty(programs, d, dtype=torch.float32)
    past = dy if through is None else rows_of(through)
    x, dy = rows_of(x), rows_of(dy)
    _rms_backward[(programs,)](
        *(dy, dy.stride(0), x, x.stride(0), gain, r, past, past.stride(0), dx, sums, tokens, d),
        PAST=through is not None, BLOCK=block, num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    return dx, sums.sum(0).to(gain.dtype)


# -- keys --------------------------------------------------------------------------------------------------------------
@triton.jit
def _keys_forward(
    v, v_stride, queries, logits, r, tokens, d, count, eps, NORMED: tl.constexpr, PRECISION: tl.constexpr,
    TOKENS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    q = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    total = tl.zeros((TOKENS, QUERIES), dtype=tl.float32)
    squares = tl.zeros((TOKENS,), dtype=tl.float32)
    for start in range(0, d, WIDTH):
        k = start + tl.arange(0, WIDTH)
        inside = (i < tokens)[:, None] & (k < d)[None, :]
        tile = tl.load(v + i[:, None] * v_stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
        w = tl.load(queries + q[None, :] * d + k[:, None], mask=(q < count)[None, :] & (k < d)[:, None], other=0.0)
        total += tl.dot(tile, w.to(tl.float32), input_precision=PRECISION)
        squares += tl.sum(tile * tile, axis=1)
    scale = tl.full((TOKENS,), 1.0, dtype=tl.float32)
    if NORMED:
        scale = 1 / tl.sqrt(squares / d + eps)
    tl.store(
        logits + i[:, None] * count + q[None, :],
        total * scale[:, None],
        mask=(i < tokens)[:, None] & (q < count)[None, :],
    )
    tl.store(r + i, scale, mask=i < tokens)


@triton.jit
def _keys_backward(
    grad, v, v_stride, queries, r, logits, through, through_stride, dv, sums, tokens, d, count, share,
    NORMED: tl.constexpr, PAST: tl.constexpr, PRECISION: tl.constexpr, TOKENS: tl.constexpr, QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    part = tl.program_id(1).to(tl.int64)
    q = tl.arange(0, QUERIES)
    known = (q < count)[:, None] & (k < d)[None, :]
    w = tl.load(queries + q[:, None] * d + k[None, :], mask=known, other=0.0).to(tl.float32)
    total = tl.zeros((QUERIES, WIDTH), dtype=tl.float32)
    for start in range(part * share, tl.minimum(tokens, (part + 1) * share), TOKENS):
        i = start + tl.arange(0, TOKENS)
        here = (i < tokens) & (i < (part + 1) * share)
        few = here[:, None] & (q < count)[None, :]
        inside = here[:, None] & (k < d)[None, :]
        up = tl.load(grad + i[:, None] * count + q[None, :], mask=few, other=0.0)
        tile = tl.load(v + i[:, None] * v_stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
        down = tl.zeros((TOKENS, WIDTH), dtype=tl.float32)
        if NORMED:
            scale = tl.load(r + i, mask=here, other=0.0)
            known_logits = tl.load(logits + i[:, None] * count + q[None, :], mask=few, other=0.0)
            down -= tile * (tl.sum(up * known_logits, axis=1) * scale * scale / d)[:, None]
            up *= scale[:, None]
        down += tl.dot(up, w, input_precision=PRECISION)
        if PAST:
            down += tl.load(through + i[:, None] * through_stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(dv + i[:, None] * d + k[None, :], down.to(dv.dtype.element_ty), mask=inside)
        total += tl.dot(tl.trans(up), tile, input_precision=PRECISION)
    tl.store(sums + (part * count + q[:, None]) * d + k[None, :], total, mask=known)


def keys_forward(v: Tensor, queries: Tensor, eps: float | None) -> Pair:
    (tokens, d), count, v = v.shape, len(queries), rows_of(v)
    logits, r = v.new_empty(tokens, count, dtype=torch.float32), v.new_empty(tokens, dtype=torch.float32)
    few = min(64, max(16, triton.next_power_of_2(count)))
    grid = (triton.cdiv(tokens, 32), triton.cdiv(count, few))
    _keys_forward[grid](
        *(v, v.stride(0), queries.contiguous(), logits, r, tokens, d, count, eps or 0.0),
        NORMED=eps is not None, PRECISION=_precision(v), TOKENS=32, QUERIES=few, WIDTH=64, num_warps=4, **FUSE,
    )  # fmt: skip
    return logits, r


def keys_backward(
    grad: Tensor, v: Tensor, queries: Tensor, r: Tensor, logits: Tensor, eps: float | None, through: Tensor | None
) -> Pair:
    found, past, at = None, through, 0
    for few in queries.split(64):  # as many as one program holds; what is in dv goes through the next
        here = slice(at, at + len(few))
        dv, dqueries = _some_keys(grad[:, here], v, few, r, logits[:, here], eps, past)
        found = [dqueries] if found is None else [*found, dqueries]
        past, at = dv, at + len(few)
    assert found is not None
    return dv, torch.cat(found)


def _some_keys(
    grad: Tensor, v: Tensor, queries: Tensor, r: Tensor, logits: Tensor, eps: float | None, through: Tensor | None
) -> Pair:
    (tokens, d), count, v = v.shape, len(queries), rows_of(v)
    parts = min(triton.cdiv(tokens, 32), 16)
    share = triton.cdiv(triton.cdiv(tokens, parts), 32) * 32
    dv, sums = v.new_empty(tokens, d), queries.new_zeros(parts, count, d)
    past = v if through is None else rows_of(through)
    _keys_backward[(triton.cdiv(d, 64), parts)](
        *(grad.contiguous(), v, v.stride(0), queries.contiguous(), r, logits.contiguous(), past, past.stride(0)),
        *(dv, sums, tokens, d, count, share),
        NORMED=eps is not None, PAST=through is not None, PRECISION=_precision(v), TOKENS=32,
        QUERIES=max(16, triton.next_power_of_2(count)), WIDTH=64, num_warps=4, **FUSE,
    )  # fmt: skip
    return dv, sums.sum(0)


def _precision(v: Tensor) -> str:
    """Half precision is exact in TF32, and the queries' rounding there is below its own."""
    return "ieee" if v.dtype == torch.float32 else "tf32"


# -- mix ---------------------------------------------------------------------------------------------------------------
@triton.jit
def _tile(first, offsets, ROWS: tl.constexpr, LAST: tl.constexpr, ALIGNED: tl.constexpr):
    """Where each of `ROWS` tensors begins, from the first: [LAST], as offsets."""
    s = tl.arange(0, LAST)
    start = tl.zeros((LAST,), dtype=tl.int64)
    for n in tl.static_range(ROWS):
        start = tl.where(s == n, offsets[n], start)
    if ALIGNED:
        start = tl.multiple_of(start, [16])
    return start


@triton.jit
def _mix_forward(
    logits, sources, strides, lse, weights, out, places, d, whole, N: tl.constexpr, S: tl.constexpr, MANY: tl.constexpr,
    SOME: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = k < d
    s, n = tl.arange(0, SOME), tl.arange(0, MANY)
    some = (n < N)[:, None] & (s < S)[None, :]
    at = i * N * S + n[:, None] * S + s[None, :]
    known = tl.load(logits + at, mask=some, other=float("-inf"))
    top = tl.where(s < S, tl.max(known, axis=0), 0.0)
    total = tl.where(s < S, tl.sum(tl.exp(known - top[None, :]), axis=0), 1.0) / whole
    if tl.program_id(1) == 0:
        tl.store(lse + i * S + s, top + tl.log(total), mask=s < S)
        tl.store(weights + at, tl.exp(known - top[None, :]) / total[None, :], mask=some)
    mixed = tl.zeros((SOME, WIDTH), dtype=tl.float32)
    for m in tl.static_range(N):
        row = tl.load(sources[m] + i * strides[m] + k, mask=inside, other=0.0).to(tl.float32)
        a = tl.exp(tl.load(logits + i * N * S + m * S + s, mask=s < S, other=0.0) - top)
        mixed += a[:, None] * row[None, :]
    mixed /= total[:, None]
    start = _tile(out, places, S, SOME, ALIGNED)
    tl.store(
        out + start[:, None] + (i * d + k)[None, :],
        mixed.to(out.dtype.element_ty),
        mask=(s < S)[:, None] & inside[None, :],
    )


@triton.jit
def _mix_backward(
    weights, sources, strides, grads, starts, steps, through, past_strides, down, parts, tokens, d,
    PAST: tl.constexpr, N: tl.constexpr, S: tl.constexpr, SOME: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = k < d
    s = tl.arange(0, SOME)
    start = _tile(grads, starts, S, SOME, ALIGNED)
    step = _tile(grads, steps, S, SOME, ALIGNED)
    up = tl.load(
        grads + (start + i * step)[:, None] + k[None, :], mask=(s < S)[:, None] & inside[None, :], other=0.0
    ).to(tl.float32)
    for m in tl.static_range(N):
        row = tl.load(sources[m] + i * strides[m] + k, mask=inside, other=0.0).to(tl.float32)
        a = tl.load(weights + i * N * S + m * S + s, mask=s < S, other=0.0)
        tl.store(
            parts + ((tl.program_id(1) * tokens + i) * N + m) * S + s, tl.sum(up * row[None, :], axis=1), mask=s < S
        )
        back = tl.sum(up * a[:, None], axis=0)
        if PAST[m]:
            back += tl.load(through[m] + i * past_strides[m] + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(down[m] + i * strides[N + m] + k, back.to(down[m].dtype.element_ty), mask=inside)


@triton.jit
def _mix_finish(
    parts, weights, dlse, dlogits, tokens, whole, N: tl.constexpr, S: tl.constexpr, MANY: tl.constexpr,
    SOME: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    s, n = tl.arange(0, SOME), tl.arange(0, MANY)
    some = (n < N)[:, None] & (s < S)[None, :]
    at = n[:, None] * S + s[None, :]
    dots = tl.zeros((MANY, SOME), dtype=tl.float32)
    for c in tl.static_range(CHUNKS):
        dots += tl.load(parts + (c * tokens + i) * N * S + at, mask=some, other=0.0)
    a = tl.load(weights + i * N * S + at, mask=some, other=0.0)
    pull = tl.load(dlse + i * S + s, mask=s < S, other=0.0)
    mean = (tl.sum(a * dots, axis=0) - pull) / whole
    tl.store(dlogits + i * N * S + at, a * (dots - mean[None, :]), mask=some)


def width_of(d: int, queries: int) -> int:
    """Numbers of a row to a program, so that the tile of all queries stays in registers."""
    return min(block_of(d), max(128, CHUNK // max(1, int(triton.next_power_of_2(queries)) // 8)))


def mix_forward(logits: Tensor, units: Sequence[Tensor], whole: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    (tokens, n, queries), sources = logits.shape, [rows_of(v) for v in single(units)]
    d, logits = sources[0].shape[1], logits.contiguous()
    lse, weights = logits.new_empty(tokens, queries), torch.empty_like(logits)
    out = [sources[0].new_empty(tokens, d) for _ in range(queries)]
    width, places = width_of(d, queries), deltas(out)
    _mix_forward[(tokens, triton.cdiv(d, width))](
        *(logits, tuple(sources), tuple(v.stride(0) for v in sources), lse, weights, out[0], places, d, whole),
        N=n, S=queries, MANY=triton.next_power_of_2(n), SOME=triton.next_power_of_2(queries), WIDTH=width,
        ALIGNED=aligned(*places, d), num_warps=4, **FUSE,
    )  # fmt: skip
    return lse, weights, out


def mix_backward(
    weights: Tensor, units: Sequence[Tensor], grads: Sequence[Tensor], dlse: Tensor, through: Sequence[Tensor | None],
    whole: float,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    (tokens, n, queries), sources = weights.shape, [rows_of(v) for v in single(units)]
    d, weights, grads = sources[0].shape[1], weights.contiguous(), [rows_of(g) for g in grads]
    dunits = [torch.empty_like(unit, memory_format=torch.contiguous_format) for unit in units]
    past: list[Tensor | None] = []
    for unit, grad in zip(units, through, strict=True):
        past += (
            [None] * (1 if unit.dim() == 2 else unit.shape[1]) if grad is None else [rows_of(g) for g in single([grad])]
        )
    down, given = single(dunits), [v if p is None else p for v, p in zip(sources, past, strict=True)]
    width, some = width_of(d, queries), triton.next_power_of_2(queries)
    chunks, starts, steps = triton.cdiv(d, width), deltas(grads), tuple(g.stride(0) for g in grads)
    parts, dlogits = weights.new_empty(chunks, tokens, n, queries), torch.empty_like(weights)
    _mix_backward[(tokens, chunks)](
        *(weights, tuple(sources), tuple(v.stride(0) for v in (*sources, *down)), grads[0], starts, steps),
        *(tuple(given), tuple(g.stride(0) for g in given), tuple(down), parts, tokens, d),
        PAST=tuple(p is not None for p in past), N=n, S=queries, SOME=some, WIDTH=width,
        ALIGNED=aligned(*starts, *steps), num_warps=4, **FUSE,
    )  # fmt: skip
    _mix_finish[(tokens,)](
        *(parts, weights, dlse.contiguous(), dlogits, tokens, whole),
        N=n, S=queries, MANY=triton.next_power_of_2(n), SOME=some, CHUNKS=chunks, num_warps=1, **FUSE,
    )  # fmt: skip
    return dlogits, dunits
