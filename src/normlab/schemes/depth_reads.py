"""The arithmetic of fast reads over depth: keys, the batched read of a block's queries, the merge of a running sum.

    keys    L = (v . w) / rms(v)                        one product per source, for all the queries still to come
    mix     o_s = sum_n softmax_n(L_ns) v_n             all queries s of a block at once; also lse_s = log sum_n exp L_ns
    merge   h = o + sigmoid(s - lse) (b - o)            one query and the open block's running sum b, s its key

The softmax over {sources, b} is exactly the merge of the two parts (the paper's two phases). Each function is written
with its derivative: what is kept for the backward pass are the sources, which are alive anyway, numbers per token, and
one vector per read (none with `recompute`). All take tokens flattened to one axis, and statistics in float32 or better.
Second derivatives are for `read="reference"`, torch.func or a compiler, which get the plain formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from normlab.schemes import depth_kernels
from normlab.schemes.depth_buffers import Basket, beside
from normlab.schemes.norms import inverse_rms, precise

FUSED_TERMS = 128  # sources times queries up to which a compiler is given single terms to fuse, not a batched product


def transformed() -> bool:
    """Does torch.func (vmap, grad, jvp) or forward-mode differentiation see this call? Then only plain code will do."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def plain() -> bool:
    """Compilers fuse the plain formula and choose what to keep themselves; torch.func cannot see into ours."""
    return torch.compiler.is_compiling() or transformed()


def full_precision(device: torch.device) -> Any:
    """Statistics are never taken in half precision: autocast is off inside."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def keys(v: Tensor, queries: Tensor, eps: float | None) -> Tensor:
    """Logits [tokens, queries] of the source v [tokens, d]; eps None leaves the keys as they are."""
    if not plain():
        return _Keys.apply(v, queries, eps)
    logits = precise(v) @ queries.t()
    return logits if eps is None else logits * inverse_rms(v, eps)


def mix(
    logits: Tensor, units: Sequence[Tensor], *, basket: Basket | None = None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Log-sum-exp [tokens, queries], weights [tokens, sources, queries] and one output [tokens, d] for each query.

    `logits` is [tokens, sources, queries]; a unit is one source [tokens, d] or several, [tokens, sources, d].
    """
    if not plain():
        lse, alpha, *outputs = _Mix.apply(logits, basket, *units)
        return lse, alpha, tuple(outputs)
    lse = torch.logsumexp(logits, dim=1)
    alpha = (logits - lse[:, None]).exp()
    weights = alpha.to(units[0].dtype)
    if weights.shape[1] * weights.shape[2] > FUSED_TERMS:
        values = torch.cat(_joined(units), dim=1)
        return lse, alpha, (weights.transpose(1, 2) @ values).unbind(1)
    sources = _single(units)
    outputs = [
        sum((weight[:, None] * v for weight, v in zip(column.unbind(1), sources, strict=True)), start=0)
        for column in weights.unbind(2)
    ]
    return lse, alpha, tuple(outputs)


def merge(
    o: Tensor,
    lse: Tensor,
    b: Tensor,
    query: Tensor,
    eps: float | None,
    *,
    rebuild: Sequence[Tensor] = (),
    basket: tuple[Basket, int] | None = None,
) -> Tensor:
    """h [tokens, d]. `rebuild`, the weights [tokens, sources] of o and its sources: keep these instead of o itself.

    `basket`: where the gradient of o is collected, and its place there.
    """
    if not plain():
        return _Merge.apply(o, lse, b, query, eps, basket, *rebuild)
    s = (precise(b) * query).sum(-1)
    if eps is not None:
        s = s * inverse_rms(b, eps).squeeze(-1)
    return o + torch.sigmoid(s - lse).to(o.dtype)[:, None] * (b - o)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    # vector_norm reads x once; squaring it would write it once more.
    return torch.linalg.vector_norm(x, dim=-1).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _dots(x: Tensor, y: Tensor) -> Tensor:
    """x . y over the last axis, in float32 or better."""
    product = precise(x) * precise(y)
    return torch.mv(product, product.new_ones(product.shape[-1]))


class _Keys(torch.autograd.Function):
    """L = r (v . w), r = 1/rms(v):  dv = sum_w r dL w - v r^2 (sum_w dL L) / d,  dw = sum over tokens of r dL v"""

    @staticmethod
    def forward(ctx: Any, v: Tensor, queries: Tensor, eps: float | None) -> Tensor:
        exact = precise(v)
        r = None if eps is None else _inverse_rms(exact, eps)
        logits = exact @ queries.t()
        if r is not None:
            logits = logits.mul_(r[:, None])
        ctx.save_for_backward(v, queries, r, logits)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        v, queries, r, logits = ctx.saved_tensors
        with full_precision(v.device):
            exact = precise(v)
            if r is None:
                return (grad @ queries).to(v.dtype), grad.t() @ exact, None
            along = _dots(grad, logits).mul_(r).mul_(r)
            grad = grad * r[:, None]
            dv = (grad @ queries).addcmul_(exact, along[:, None], value=-1 / v.shape[-1])
            return dv.to(v.dtype), grad.t() @ exact, None


class _Mix(torch.autograd.Function):
    """a = softmax(L), o_s = sum_n a_ns v_n:  dv_n = sum_s a_ns do_s,  dL_ns = a_ns (do_s . v_n - do_s . o_s + dlse_s)"""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, basket: Basket | None, *units: Tensor) -> tuple[Tensor, ...]:
        ctx.basket = basket
        if (kernels := depth_kernels.usable(logits, *units)) is not None:
            lse, alpha, outputs = kernels.mix_forward(logits.contiguous(), _single(units))
            ctx.save_for_backward(alpha, *units)
            ctx.mark_non_differentiable(alpha)
            return lse, alpha, *outputs
        lse = torch.logsumexp(logits, dim=1)
        alpha = (logits - lse[:, None]).exp_()
        ctx.save_for_backward(alpha, *units)
        ctx.mark_non_differentiable(alpha)
        weights = alpha.to(units[0].dtype)
        if alpha.shape[2] == 1:
            outputs = [weighted_sum(weights[:, :, 0], units)]
        else:
            parts = _joined(units)
            slices = weights.split([part.shape[1] for part in parts], dim=1)
            total = torch.bmm(slices[0].transpose(1, 2), parts[0])
            for weight, part in zip(slices[1:], parts[1:], strict=True):
                total.baddbmm_(weight.transpose(1, 2), part)
            outputs = [*total.unbind(1)]
        return lse, alpha, *outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlse: Tensor, _: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        alpha, *units = ctx.saved_tensors
        if (kernels := depth_kernels.usable(alpha, *units, *grads)) is not None:
            dunits = [torch.empty_like(unit, memory_format=torch.contiguous_format) for unit in units]
            dlogits = kernels.mix_backward(
                alpha.contiguous(), _single(units), grads, dlse.contiguous(), _single(dunits)
            )
            return dlogits, None, *dunits
        weights = alpha.to(units[0].dtype)
        if alpha.shape[2] == 1 and all(unit.dim() == 2 for unit in units):
            dots = torch.stack([_dots(grads[0], unit) for unit in units], dim=1)[:, :, None]
            dunits = [grads[0] * weights[:, n] for n in range(len(units))]
        else:
            do = beside(grads) if ctx.basket is None else ctx.basket.empty(grads)
            parts = _joined(units)
            dots = torch.cat([torch.bmm(part, do.transpose(1, 2)) for part in parts], dim=1)
            dparts = [torch.bmm(w, do) for w in weights.split([part.shape[1] for part in parts], dim=1)]
            dunits = _parted(dparts, units)
        dots = precise(dots)
        mean = (alpha * dots).sum(1, keepdim=True)
        return alpha * (dots - mean + dlse[:, None]), None, *dunits


class _Merge(torch.autograd.Function):
    """g = sigmoid(s - lse), s = r (b . w):  do = (1 - g) dh,  ds = g (1 - g) dh . (b - o) = -dlse,
    db = g dh + ds (r w - s r^2 b / d),  dw = sum over tokens of ds r b"""

    @staticmethod
    def forward(
        ctx: Any,
        o: Tensor,
        lse: Tensor,
        b: Tensor,
        query: Tensor,
        eps: float | None,
        basket: tuple[Basket, int] | None,
        *rebuild: Tensor,
    ) -> Tensor:
        if (kernels := depth_kernels.usable(b, o, query, lse[:, None])) is not None:
            h, stats = kernels.merge_forward(o, lse, b, query, eps)
        else:
            exact = precise(b)
            r = torch.ones_like(lse) if eps is None else _inverse_rms(exact, eps)
            s = torch.mv(exact, query).mul_(r)
            gate = torch.sigmoid(s - lse)
            h, stats = torch.lerp(o, b, gate.to(o.dtype)[:, None]), torch.stack([r, s, gate])
        ctx.rebuilds, ctx.basket, ctx.normed = bool(rebuild), basket, eps is not None
        ctx.save_for_backward(b, query, stats, *(rebuild or (o,)))
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        b, query, stats, *kept = ctx.saved_tensors
        o = weighted_sum(kept[0].to(b.dtype), kept[1:]) if ctx.rebuilds else kept[0]
        place = None if ctx.basket is None or precise(dh).dtype != o.dtype else ctx.basket[0].place(ctx.basket[1], o)
        rest = [None] * (2 + (len(kept) if ctx.rebuilds else 0))
        if (kernels := depth_kernels.usable(b, o, query, dh)) is not None:
            return *kernels.merge_backward(dh, o, b, query, ctx.normed, stats, place), *rest
        # Memory traffic is the whole cost here: one buffer serves for dh (b - o), for g dh and for db.
        r, s, gate = stats
        exact, wide = precise(b), precise(dh)
        buffer = torch.sub(exact, precise(o)).mul_(wide)
        ds = torch.mv(buffer, buffer.new_ones(buffer.shape[1])).mul_(gate * (1 - gate))
        through = torch.mul(wide, gate[:, None], out=buffer)
        do = (wide - through).to(o.dtype) if place is None else torch.sub(wide, through, out=place)
        pull = ds * r
        db = through.addr_(pull, query)
        if ctx.normed:
            db = db.addcmul_(exact, (pull * r * s)[:, None], value=-1 / b.shape[-1])
        dquery = torch.mv(exact.t(), pull)
        return do, -ds, db.to(b.dtype), dquery, *rest


def weighted_sum(weights: Tensor, units: Sequence[Tensor]) -> Tensor:
    """sum_n weights[:, n] v_n for one query, without a stacked copy."""
    total, n = None, 0
    for unit in units:
        for v in (unit,) if unit.dim() == 2 else unit.unbind(1):
            weight = weights[:, n, None]
            total = weight * v if total is None else total.addcmul_(weight, v)
            n += 1
    assert total is not None
    return total


def _single(units: Sequence[Tensor]) -> list[Tensor]:
    """The units' sources, [tokens, d] each."""
    return [v for unit in units for v in ((unit,) if unit.dim() == 2 else unit.unbind(1))]


def _joined(units: Sequence[Tensor]) -> list[Tensor]:
    """The units as [tokens, sources, d]; single ones side by side (`beside`), for one batched product."""
    singles = [unit for unit in units if unit.dim() == 2]
    return [*([beside(singles)] if singles else []), *(unit for unit in units if unit.dim() == 3)]


def _parted(grads: Sequence[Tensor], units: Sequence[Tensor]) -> list[Tensor]:
    """Undo `_joined`. Single units come first in every call."""
    singles = sum(unit.dim() == 2 for unit in units)
    return [*(grads[0].unbind(1) if singles else []), *grads[bool(singles) :]]
