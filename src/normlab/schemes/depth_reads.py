"""The arithmetic of fast reads over depth: keys, the batched read of a block's queries, the merge of a running sum.

    keys    L = (v . w) / rms(v)                        one product per source, for all the queries still to come
    mix     o_s = sum_n softmax_n(L_ns) v_n             all queries s of a block at once; also lse_s = log sum_n exp L_ns
    merge   h = o + sigmoid(s - lse) (b - o)            one query and the open block's running sum b, s its key
    attend  h = sum_n softmax_n(L_n) v_n                one query, few sources

The softmax over {sources, b} is exactly the merge of the two parts (the paper's two phases). Merge and attend take the
branch's RMSNorm along. Each function is written with its derivative: what is kept for the backward pass are the sources,
which are alive anyway, numbers per token, and one vector per read (none with `recompute`).

A function hands its sources on, as tensors of their own: who reads them next takes these. Their gradient then comes back
through the function and is added in the same pass, where autograd would add it in passes of its own. On CPUs it does not
even come back: the readers of a source add to one `Gather`, in place, and its keys' backward pass takes the sum.

All take tokens flattened to one axis, and statistics in float32 or better. Compilers get registered operations
(ops/depth.py). Second derivatives are for `read="reference"` or torch.func, which get the plain formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_kernels import usable
from normlab.schemes.norms import inverse_rms, precise
from normlab.schemes.ops import depth, depth_plain
from normlab.schemes.ops.depth_plain import joined, one_share, single, weighted_sum
from normlab.schemes.ops.gather import Gather, Gathers, followed, hand_on, rooms_for

Context = Any  # torch's, of an autograd.Function


class Norm(NamedTuple):
    """The RMSNorm that follows a read."""

    gain: Tensor
    eps: float

    def of(self, h: Tensor) -> Tensor:
        return self(h) if transformed() else handed_norm(h, self)[0]

    def __call__(self, h: Tensor) -> Tensor:
        """By plain operations."""
        return (precise(h) * inverse_rms(h, self.eps) * precise(self.gain)).to(h.dtype)


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


def gather_for(v: Tensor) -> Gather | None:
    """For a source that C will read, where a gradient may be asked for."""
    return Gather() if torch.is_grad_enabled() and not plain() and usable(v) is not None else None


def keys(v: Tensor, queries: Tensor, eps: float | None, gather: Gather | None = None) -> tuple[Tensor, Tensor]:
    """Logits [tokens, queries] of the source v [tokens, d], and v; eps None leaves the keys as they are."""
    if transformed():
        logits = precise(v) @ queries.t()
        return logits if eps is None else logits * inverse_rms(v, eps), v
    if torch.compiler.is_compiling():
        return depth.keys.registered(v, queries, eps)[0], v
    logits, handed = _Keys.apply(v, queries, eps, gather)
    hand_on([gather], [handed])
    return logits, handed


def mix(
    logits: Tensor, units: Sequence[Tensor], *, summed: bool = False, gathers: Gathers = ()
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Log-sum-exp [tokens, queries], weights [tokens, sources, queries], an output [tokens, d] for each query; the units.

    `logits` is [tokens, sources, queries]; a unit is one source [tokens, d] or several, [tokens, sources, d]. `summed`:
    each output is as large as the sum of its n sources, n times their weighted mean, and the log-sum-exp is less log n.
    """
    whole = float(logits.shape[1]) if summed else 1.0
    if transformed():
        lse = torch.logsumexp(logits, dim=1) - math.log(whole)
        alpha = (logits - lse[:, None]).exp()
        outputs = alpha.to(units[0].dtype).transpose(1, 2) @ torch.cat(joined(units), dim=1)
        return lse, alpha, outputs.unbind(1), tuple(units)
    if torch.compiler.is_compiling():
        lse, alpha, found = depth.mix.registered(logits, list(units), whole)
        return lse, alpha, tuple(found), tuple(units)
    mine = followed(gathers, units)
    lse, alpha, *rest = _Mix.apply(logits, whole, mine, *units)
    handed = tuple(rest[: len(units)])
    hand_on(mine, handed)
    return lse, alpha, tuple(rest[len(units) :]), handed


class Query(NamedTuple):
    """w of one read (its gain folded in), and the eps of the keys' norm; None: no norm."""

    vector: Tensor
    eps: float | None


def merge(
    o: Tensor, lse: Tensor, b: Tensor, query: Query, *, norm: Norm | None = None, rebuild: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor]:
    """h [tokens, d], or its norm, and b. `rebuild`, the weights [tokens, sources] of o and its sources: keep these
    instead of o itself."""
    w, eps = query
    if transformed():
        s = (precise(b) * w).sum(-1)
        if eps is not None:
            s = s * inverse_rms(b, eps).squeeze(-1)
        h = o + torch.sigmoid(s - lse).to(o.dtype)[:, None] * (b - o)
        return h if norm is None else norm(h), b
    gain, norm_eps = (None, 0.0) if norm is None else norm
    if torch.compiler.is_compiling():
        return depth.merge.registered(o, lse, b, w, eps, gain, norm_eps)[0], b
    return _Merge.apply(o, lse, b, w, eps, gain, norm_eps, *rebuild)


def attend(
    logits: Sequence[Tensor], sources: Sequence[Tensor], *, norm: Norm | None = None, summed: int = 0,
    gathers: Gathers = (),
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """h [tokens, d], or its norm, for logits [tokens] of sources [tokens, d]; and the sources but the first.

    `summed`: the first source is the output of a `mix` of so many, summed, and so is h.
    """
    mass, whole = (float(summed), float(summed + len(sources) - 1)) if summed else (1.0, 1.0)
    if transformed():
        weights = one_share(torch.stack(tuple(logits), dim=1), mass, whole).to(sources[0].dtype)
        h = (weights[..., None] * torch.stack(tuple(sources), dim=1)).sum(1)
        return h if norm is None else norm(h), tuple(sources[1:])
    gain, eps = (None, 0.0) if norm is None else norm
    if torch.compiler.is_compiling():
        return depth.attend.registered(list(logits), list(sources), gain, eps, mass, whole)[0], tuple(sources[1:])
    mine = followed(gathers, sources[1:])
    h, *handed = _Attend.apply((mass, whole), gain, eps, mine, *logits, *sources)
    hand_on(mine, handed)
    return h, tuple(handed)


def handed_norm(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """RMSNorm of x [..., d], and x for whoever goes past the norm."""
    return _Normed.apply(x, norm.gain, norm.eps)


def _rows(x: Tensor) -> Tensor:
    """The numbers of a row side by side, for C; gradients of broadcasts come otherwise."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Normed(torch.autograd.Function):
    """RMSNorm that hands its input on. Where x is used twice, before and past a norm, one pass adds both gradients."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, r = depth.rms.on(x)(x.reshape(-1, x.shape[-1]), gain, eps)
        ctx.save_for_backward(x, gain, r)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return y.view(x.shape), x.view_as(x)

    @staticmethod
    def backward(ctx: Context, dy: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, gain, r = ctx.saved_tensors
        if dy is None:
            return through, None, None
        if torch.is_grad_enabled():  # a second derivative is wanted: only plain operations have one
            return *_norm_gradients(dy, x, gain, ctx.eps, through), None
        rows = x.reshape(-1, x.shape[-1])
        past = None if through is None else _rows(through.reshape(rows.shape))
        dx, dgain = depth.rms_backward.on(x)(_rows(dy.reshape(rows.shape)), rows, gain, r, past)
        return dx.view(x.shape), dgain, None


def _norm_gradients(dy: Tensor, x: Tensor, gain: Tensor, eps: float, through: Tensor | None) -> tuple[Tensor, Tensor]:
    wide, exact, g, r = precise(dy), precise(x), precise(gain), inverse_rms(x, eps)
    dx = r * g * wide - exact * r**3 * (wide * g * exact).mean(-1, keepdim=True)
    dgain = (wide * exact * r).flatten(0, -2).sum(0).to(gain.dtype)
    return (dx if through is None else dx + through).to(x.dtype), dgain


class _Keys(torch.autograd.Function):
    """L = r (v . w), r = 1/rms(v):  dv = sum_w r dL w - v r^2 (sum_w dL L) / d,  dw = sum over tokens of r dL v"""

    @staticmethod
    def forward(
        ctx: Context, v: Tensor, queries: Tensor, eps: float | None, gather: Gather | None
    ) -> tuple[Tensor, Tensor]:
        logits, r = depth.keys.on(v)(v, queries, eps)
        ctx.save_for_backward(v, queries, r, logits)
        ctx.eps, ctx.gather = eps, gather
        ctx.set_materialize_grads(False)
        return logits, v.view_as(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        v, queries, r, logits = ctx.saved_tensors
        gathered = None if ctx.gather is None else ctx.gather.take()
        if gathered is not None and through is not None:
            gathered.add_(through)
        past = through if gathered is None else gathered
        if grad is None:
            return past, None, None, None
        with full_precision(v.device):
            if gathered is not None:
                return *depth_plain.keys_backward(grad, v, queries, r, logits, ctx.eps, past, own=True), None, None
            return *depth.keys_backward.on(v)(grad, v, queries, r, logits, ctx.eps, past), None, None


class _Mix(torch.autograd.Function):
    """a = u softmax(L), o_s = sum_n a_ns v_n:  dv_n = sum_s a_ns do_s,
    dL_ns = a_ns (do_s . v_n - (do_s . o_s - dlse_s) / u), u the whole"""

    @staticmethod
    def forward(ctx: Context, logits: Tensor, whole: float, gathers: Gathers, *units: Tensor) -> tuple[Tensor, ...]:
        lse, alpha, outputs = depth.mix.on(logits)(logits, units, whole)
        ctx.save_for_backward(alpha, *units)
        ctx.whole, ctx.gathers = whole, gathers
        ctx.mark_non_differentiable(alpha)
        ctx.set_materialize_grads(False)
        return lse, alpha, *(unit.view_as(unit) for unit in units), *outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, dlse: Tensor | None, _: Tensor, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        alpha, *units = ctx.saved_tensors
        through, given = grads[: len(units)], grads[len(units) :]
        if dlse is None and all(grad is None for grad in given):
            return None, None, None, *through
        tokens, _, queries = alpha.shape
        shape = (tokens, units[0].shape[-1])
        outputs = [units[0].new_zeros(shape) if grad is None else _rows(grad) for grad in given]
        dlse = alpha.new_zeros(tokens, queries) if dlse is None else dlse
        past = [None if grad is None else _rows(grad) for grad in through]
        kernels = usable(alpha, *units, *outputs, *(p for p in past if p is not None)) if any(ctx.gathers) else None
        if kernels is not None:
            rooms = rooms_for(ctx.gathers, units, past)
            dlogits = depth.mix_backward_into(kernels, (alpha, units, outputs, dlse), rooms, ctx.whole)
            return dlogits, None, None, *(room.returned for room in rooms)
        dlogits, dunits = depth.mix_backward.on(alpha)(alpha, units, outputs, dlse, past, ctx.whole)
        return dlogits, None, None, *dunits


class _Merge(torch.autograd.Function):
    """g = sigmoid(s - lse), s = r (b . w):  do = (1 - g) dh,  ds = g (1 - g) dh . (b - o) = -dlse,
    db = g dh + ds (r w - s r^2 b / d),  dw = sum over tokens of ds r b"""

    @staticmethod
    def forward(ctx: Context, o: Tensor, lse: Tensor, b: Tensor, query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        eps, gain, norm_eps, *rebuild = rest
        h, stats = depth.merge.on(b)(o, lse, b, query, eps, gain, norm_eps)
        ctx.rebuilds, ctx.eps, ctx.rest = bool(rebuild), eps, len(rebuild)
        ctx.save_for_backward(b, query, stats, gain, *(rebuild or (o,)))
        ctx.set_materialize_grads(False)
        return h, b.view_as(b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        b, query, stats, gain, *kept = ctx.saved_tensors
        nothing = [None] * ctx.rest
        if grad is None:
            return None, None, through, None, None, None, None, *nothing
        o = weighted_sum(kept[0].to(b.dtype), kept[1:]) if ctx.rebuilds else kept[0]
        past = None if through is None else _rows(through)
        do, dlse, db, dquery, dgain = depth.merge_backward.on(b)(_rows(grad), o, b, query, stats, ctx.eps, gain, past)
        return do, dlse, db, dquery, None, None if gain is None else dgain, None, *nothing


class _Attend(torch.autograd.Function):
    """a = u softmax(L), h = sum_n a_n v_n:  dv_n = a_n dh,  dL_n = a_n (dh . v_n - m_n dh . h / u), u the whole, m a mass"""

    @staticmethod
    def forward(
        ctx: Context, share: tuple[float, float], gain: Tensor | None, eps: float, gathers: Gathers, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        logits, sources = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        h, alpha, scale = depth.attend.on(sources[0])(logits, sources, gain, eps, *share)
        ctx.share, ctx.gathers = share, [None, *gathers]
        ctx.save_for_backward(alpha, gain, scale, *sources)
        ctx.set_materialize_grads(False)
        return h, *(v.view_as(v) for v in sources[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor | None, *handed: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        alpha, gain, scale, *sources = ctx.saved_tensors
        if grad is None:
            return None, None, None, None, *([None] * len(sources)), None, *handed
        past = [None, *(None if one is None else _rows(one) for one in handed)]
        given = (_rows(grad), alpha, sources, gain, scale)
        known = (*sources, *(p for p in past if p is not None), *(() if gain is None else (gain,)))
        kernels = usable(grad, alpha, *known) if any(ctx.gathers) else None
        if kernels is not None:
            rooms = rooms_for(ctx.gathers, sources, past)
            places, joins = [room.place for room in rooms], [room.joins for room in rooms]
            dlogits, dgain = kernels.attend_backward(*given, joins, places, ctx.share)
            dsources: Sequence[Tensor | None] = [room.returned for room in rooms]
        else:
            dlogits, dsources, dgain = depth.attend_backward.on(grad)(*given, past, *ctx.share)
        return None, None if gain is None else dgain, None, None, *dlogits.unbind(0), *dsources


__all__ = ["attend", "full_precision", "handed_norm", "keys", "merge", "mix", "plain", "single", "transformed"]
