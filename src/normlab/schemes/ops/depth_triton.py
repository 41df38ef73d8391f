"""The passes of fast reads over depth in Triton, for CUDA and ROCm: each source is loaded once for all queries of a block.

Twins of the functions in depth_plain.py, which has the formulas. Any width, float32, bfloat16 and float16; statistics and
sums in float32. Sums over tokens are partial sums of a fixed number of programs, added in order: no atomics, so a result
repeats. Imported only where a device needs it (ops/depth.py). The kernels' tests run in Triton's interpreter and through
its compiler for sm80, sm90 and sm100: no GPU was at hand, and nothing here was timed on one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlab.schemes.ops.depth_plain import single

Pair = tuple[Tensor, Tensor]
CHUNK = 1024  # numbers of a row that one program of mix holds for every query
FUSE = {"enable_fp_fusion": True}


def block_of(d: int) -> int:
    return max(16, int(triton.next_power_of_2(d)))


def warps_of(block: int) -> int:
    """Sixteen numbers of each row to a thread, as far as warps go."""
    return max(1, min(16, block // 512))


def programs_of(x: Tensor, tokens: int) -> int:
    """Programs that share the tokens where sums over tokens are kept: each holds one partial sum."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    return max(1, min(tokens, 2 * processors))


def aligned(*numbers: int) -> bool:
    return all(number % 16 == 0 for number in numbers)


def deltas(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Where tensors begin, counted in numbers from the first: a tile of rows can then be addressed as one."""
    return tuple((t.data_ptr() - tensors[0].data_ptr()) // t.element_size() for t in tensors)


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
        down = scale * up - row * (tl.sum(up * row) * scale * scale * scale / d)
        if PAST:
            down += tl.load(through + i * through_stride + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + i * d + k, down.to(dx.dtype.element_ty), mask=inside)
    tl.store(sums + first * d + k, total, mask=inside)


def rms_forward(x: Tensor, gain: Tensor, eps: float) -> Pair:
    (tokens, d), x = x.shape, _rows(x)
    y, r, block = x.new_empty(tokens, d), x.new_empty(tokens, dtype=torch.float32), block_of(d)
    _rms_forward[(tokens,)](x, x.stride(0), gain, y, r, d, eps, BLOCK=block, num_warps=warps_of(block), **FUSE)
    return y, r


def rms_backward(dy: Tensor, x: Tensor, gain: Tensor, r: Tensor, through: Tensor | None) -> Pair:
    (tokens, d), block, programs = x.shape, block_of(x.shape[1]), programs_of(x, len(x))
    dx, sums = x.new_empty(tokens, d), x.new_empty(programs, d, dtype=torch.float32)
    past = dy if through is None else _rows(through)
    x, dy = _rows(x), _rows(dy)
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
    (tokens, d), count, v = v.shape, len(queries), _rows(v)
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
    (tokens, d), count, v = v.shape, len(queries), _rows(v)
    parts = min(triton.cdiv(tokens, 32), 16)
    share = triton.cdiv(triton.cdiv(tokens, parts), 32) * 32
    dv, sums = v.new_empty(tokens, d), queries.new_zeros(parts, count, d)
    past = v if through is None else _rows(through)
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
    logits, sources, strides, lse, weights, out, places, d, N: tl.constexpr, S: tl.constexpr, MANY: tl.constexpr,
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
    total = top + tl.log(tl.where(s < S, tl.sum(tl.exp(known - top[None, :]), axis=0), 1.0))
    if tl.program_id(1) == 0:
        tl.store(lse + i * S + s, total, mask=s < S)
        tl.store(weights + at, tl.exp(known - total[None, :]), mask=some)
    mixed = tl.zeros((SOME, WIDTH), dtype=tl.float32)
    for m in tl.static_range(N):
        row = tl.load(sources[m] + i * strides[m] + k, mask=inside, other=0.0).to(tl.float32)
        a = tl.exp(tl.load(logits + i * N * S + m * S + s, mask=s < S, other=0.0) - total)
        mixed += a[:, None] * row[None, :]
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
    parts, weights, dlse, dlogits, tokens, N: tl.constexpr, S: tl.constexpr, MANY: tl.constexpr, SOME: tl.constexpr,
    CHUNKS: tl.constexpr,
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
    tl.store(dlogits + i * N * S + at, a * (dots - tl.sum(a * dots, axis=0)[None, :] + pull[None, :]), mask=some)


def width_of(d: int, queries: int) -> int:
    """Numbers of a row to a program, so that the tile of all queries stays in registers."""
    return min(block_of(d), max(128, CHUNK // max(1, int(triton.next_power_of_2(queries)) // 8)))


def mix_forward(logits: Tensor, units: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    (tokens, n, queries), sources = logits.shape, [_rows(v) for v in single(units)]
    d, logits = sources[0].shape[1], logits.contiguous()
    lse, weights = logits.new_empty(tokens, queries), torch.empty_like(logits)
    out = [sources[0].new_empty(tokens, d) for _ in range(queries)]
    width, places = width_of(d, queries), deltas(out)
    _mix_forward[(tokens, triton.cdiv(d, width))](
        *(logits, tuple(sources), tuple(v.stride(0) for v in sources), lse, weights, out[0], places, d),
        N=n, S=queries, MANY=triton.next_power_of_2(n), SOME=triton.next_power_of_2(queries), WIDTH=width,
        ALIGNED=aligned(*places, d), num_warps=4, **FUSE,
    )  # fmt: skip
    return lse, weights, out


def mix_backward(
    weights: Tensor, units: Sequence[Tensor], grads: Sequence[Tensor], dlse: Tensor, through: Sequence[Tensor | None]
) -> tuple[Tensor, list[Tensor]]:
    (tokens, n, queries), sources = weights.shape, [_rows(v) for v in single(units)]
    d, weights, grads = sources[0].shape[1], weights.contiguous(), [_rows(g) for g in grads]
    dunits = [torch.empty_like(unit, memory_format=torch.contiguous_format) for unit in units]
    past: list[Tensor | None] = []
    for unit, grad in zip(units, through, strict=True):
        past += (
            [None] * (1 if unit.dim() == 2 else unit.shape[1]) if grad is None else [_rows(g) for g in single([grad])]
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
        *(parts, weights, dlse.contiguous(), dlogits, tokens),
        N=n, S=queries, MANY=triton.next_power_of_2(n), SOME=some, CHUNKS=chunks, num_warps=1, **FUSE,
    )  # fmt: skip
    return dlogits, dunits


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
            up = scale * up - mixed * (tl.sum(up * mixed) * scale * scale * scale / d)
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
    (tokens, d), o, b = b.shape, _rows(o), _rows(b)
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
    grad, o, b, past = _rows(grad), _rows(o), _rows(b), _rows(b if through is None else through)
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
    logits, steps, sources, stride, gain, h, weights, scales, d, eps, N: tl.constexpr, NORM: tl.constexpr,
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
        total += a
        mixed += a * tl.load(sources[n] + i * stride + k, mask=inside, other=0.0).to(tl.float32)
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
            up = scale * up - mixed * (tl.sum(up * mixed) * scale * scale * scale / d)
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
    logits: Sequence[Tensor], sources: Sequence[Tensor], gain: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    (stride, sources), n = _alike(sources), len(sources)
    (tokens, d), block = sources[0].shape, block_of(sources[0].shape[1])
    h = sources[0].new_empty(tokens, d)
    weights, scale = logits[0].new_empty(tokens, n), logits[0].new_empty(tokens)
    _attend_forward[(tokens,)](
        *(tuple(logits), tuple(l.stride(0) for l in logits), tuple(sources), stride),
        *(sources[0] if gain is None else gain, h, weights, scale, d, eps),
        N=n, NORM=gain is not None, BLOCK=block, num_warps=warps_of(block), **FUSE,
    )  # fmt: skip
    return h, weights, scale


def attend_backward(
    grad: Tensor, weights: Tensor, sources: Sequence[Tensor], gain: Tensor | None, scale: Tensor,
    through: Sequence[Tensor | None],
) -> tuple[Tensor, list[Tensor], Tensor]:  # fmt: skip
    grad, (stride, sources), n = _rows(grad), _alike(sources), len(sources)
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
    return weights.t() * (dlogits - sums[:tokens]), down, dgain


def _alike(tensors: Sequence[Tensor]) -> tuple[int, list[Tensor]]:
    """One stride for all: two dozen strides would not leave room in the registers."""
    strides = {t.stride() for t in tensors}
    if len(strides) == 1 and (stride := strides.pop())[-1] == 1:
        return stride[0], list(tensors)
    return (tensors[0].shape[-1] if tensors else 0), [t.contiguous() for t in tensors]


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
