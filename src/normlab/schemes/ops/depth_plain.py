"""The passes of fast reads over depth in PyTorch: for devices without a kernel of ours, and what kernels are tested against.

Every function has a twin of its name in C (depth_kernels.py) and in Triton (depth_triton.py). Tokens are flattened to one
axis; statistics are taken in float32 or better. `through` is a gradient that came past the function, by the tensor that
it handed on: it is added here, in the same pass.

`whole` is what the weights of a read add up to: 1, a mean of sources, or their number, a sum that is weighed (a swapped
model reads so). Then weights are 1 and the log-sum-exp is a logit where all logits are equal, both without rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normlab.schemes.norms import precise

Pair = tuple[Tensor, Tensor]


def reciprocal_rms(x: Tensor, eps: float) -> Tensor:
    # vector_norm reads x once; squaring it would write it once more.
    norm: Tensor = torch.linalg.vector_norm(precise(x), dim=-1)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def dots(x: Tensor, y: Tensor) -> Tensor:
    """x . y over the last axis, in float32 or better."""
    product = precise(x) * precise(y)
    return torch.mv(product, product.new_ones(product.shape[-1]))


def rms_forward(x: Tensor, gain: Tensor, eps: float) -> Pair:
    """y = g x r, r = 1 / rms(x)"""
    r = reciprocal_rms(x, eps)
    return (precise(x) * r[:, None]).mul_(precise(gain)).to(x.dtype), r


def rms_backward(dy: Tensor, x: Tensor, gain: Tensor, r: Tensor, through: Tensor | None) -> Pair:
    """dx = through + r g dy - x r^3 (dy g . x) / d, dg = sum over tokens of dy x r"""
    wide, exact, g = precise(dy), precise(x), precise(gain)
    product = wide * exact
    dgain = torch.mv(product.t(), r)
    along = torch.mv(product, g) * r**3
    dx = (wide * g).mul_(r[:, None]).addcmul_(exact, along[:, None], value=-1 / x.shape[-1])
    return _past(dx, through).to(x.dtype), dgain.to(gain.dtype)


def keys_forward(v: Tensor, queries: Tensor, eps: float | None) -> Pair:
    """L = r (v . w), r = 1/rms(v); eps None leaves the keys as they are."""
    logits = precise(v) @ queries.t()
    if eps is None:
        return logits, logits.new_ones(len(v))
    r = reciprocal_rms(v, eps)
    return logits.mul_(r[:, None]), r


def keys_backward(
    grad: Tensor, v: Tensor, queries: Tensor, r: Tensor, logits: Tensor, eps: float | None, through: Tensor | None,
    *, own: bool = False,
) -> Pair:  # fmt: skip
    """dv = through + sum_w r dL w - v r^2 (sum_w dL L) / d,  dw = sum over tokens of r dL v

    `own`: what came through is ours alone, and of full precision: the rest is added to it in place.
    """
    exact = precise(v)
    pull = grad if eps is None else grad * r[:, None]
    along = None if eps is None else (dots(grad, logits) * r * r)[:, None]
    if own:
        assert through is not None
        dv = through if along is None else through.addcmul_(exact, along, value=-1 / v.shape[-1])
        return dv.addmm_(pull, queries), pull.t() @ exact
    if through is not None and along is not None:  # the product joins in place: what came through is copied by no pass
        dv = torch.addcmul(precise(through), exact, along, value=-1 / v.shape[-1]).addmm_(pull, queries)
    else:
        dv = pull @ queries if through is None else torch.addmm(precise(through), pull, queries)
        dv = dv if along is None else dv.addcmul_(exact, along, value=-1 / v.shape[-1])
    return dv.to(v.dtype), pull.t() @ exact


def mix_forward(logits: Tensor, units: Sequence[Tensor], whole: float = 1.0) -> tuple[Tensor, Tensor, list[Tensor]]:
    """a = whole softmax_n(L), o_s = sum_n a_ns v_n; also lse_s = log (sum_n exp L_ns) / whole."""
    lse, alpha = shares(logits, whole)
    weights = alpha.to(units[0].dtype)
    parts = joined(units)
    slices = weights.split([part.shape[1] for part in parts], dim=1)
    total = torch.bmm(slices[0].transpose(1, 2), parts[0])
    for weight, part in zip(slices[1:], parts[1:], strict=True):
        total.baddbmm_(weight.transpose(1, 2), part)
    return lse, alpha, [out.clone() for out in total.unbind(1)]  # apart: whoever keeps one keeps no more than it


def shares(logits: Tensor, whole: float) -> Pair:
    """log (sum_n exp L_n) / whole and whole softmax_n(L) over the second axis."""
    if whole == 1.0:
        lse = torch.logsumexp(logits, dim=1)
        return lse, (logits - lse[:, None]).exp_()
    top = logits.amax(1)
    found = (logits - top[:, None]).exp()
    total = found.sum(1)
    return top + (total / whole).log(), found * whole / total[:, None]


def mix_backward(
    alpha: Tensor, units: Sequence[Tensor], grads: Sequence[Tensor], dlse: Tensor, through: Sequence[Tensor | None],
    whole: float = 1.0,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """dv_n = through_n + sum_s a_ns do_s,  dL_ns = a_ns (do_s . v_n - (do_s . o_s - dlse_s) / whole)"""
    weights, do, parts = alpha.to(units[0].dtype), torch.stack(tuple(grads), dim=1), joined(units)
    products = precise(torch.cat([torch.bmm(part, do.transpose(1, 2)) for part in parts], dim=1))
    dparts = [torch.bmm(w, do) for w in weights.split([part.shape[1] for part in parts], dim=1)]
    dunits = [_past(grad.clone(), past) for grad, past in zip(parted(dparts, units), through, strict=True)]
    mean = (alpha * products).sum(1, keepdim=True) / whole
    return alpha * (products - mean + dlse[:, None] / whole), dunits


def merge_forward(
    o: Tensor, lse: Tensor, b: Tensor, query: Tensor, eps: float | None, gain: Tensor | None, norm_eps: float
) -> Pair:
    """h = o + g (b - o), g = sigmoid(s - lse), s = r (b . w), or its RMSNorm; and [4, tokens]: r, s, g, 1 / rms(h)."""
    exact = precise(b)
    r = torch.ones_like(lse) if eps is None else reciprocal_rms(b, eps)
    s = torch.mv(exact, query).mul_(r)
    gate = torch.sigmoid(s - lse)
    h = torch.lerp(o, b, gate.to(o.dtype)[:, None])
    if gain is None:
        return h, torch.stack([r, s, gate, torch.ones_like(r)])
    x, scale = rms_forward(h, gain, norm_eps)
    return x, torch.stack([r, s, gate, scale])


def merge_backward(
    grad: Tensor, o: Tensor, b: Tensor, query: Tensor, stats: Tensor, eps: float | None,
    gain: Tensor | None, through: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """do = (1 - g) dh,  ds = g (1 - g) dh . (b - o) = -dlse,  db = through + g dh + ds (r w - s r^2 b / d),
    dw = sum over tokens of ds r b; and the gradient of the gain."""
    r, s, gate, scale = stats
    dgain, dh = query.new_empty(0), precise(grad)
    if gain is not None:
        h = torch.lerp(precise(o), precise(b), gate[:, None])
        dh, dgain = rms_backward(dh, h, gain, scale, None)
    # Memory traffic is the whole cost here: one buffer serves for dh (b - o), for g dh and for db.
    exact = precise(b)
    buffer = torch.sub(exact, precise(o)).mul_(dh)
    ds = torch.mv(buffer, buffer.new_ones(buffer.shape[1])).mul_(gate * (1 - gate))
    past = torch.mul(dh, gate[:, None], out=buffer)
    do = (dh - past).to(o.dtype)
    pull = ds * r
    db = past.addr_(pull, query)
    if eps is not None:
        db = db.addcmul_(exact, (pull * r * s)[:, None], value=-1 / b.shape[-1])
    return do, -ds, _past(db, through).to(b.dtype), torch.mv(exact.t(), pull), dgain


def attend_forward(
    logits: Sequence[Tensor], sources: Sequence[Tensor], gain: Tensor | None, eps: float, mass: float = 1.0,
    whole: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """h = sum_n a_n v_n, a = whole exp(L) / (mass exp L_0 + exp L_1 + ...), or its RMSNorm; a [tokens, sources], 1 / rms(h).

    `mass`: how many sources the first stands for, if it is a weighed sum of them.
    """
    alpha = one_share(torch.stack(tuple(logits), dim=1), mass, whole)
    h = weighted_sum(alpha.to(sources[0].dtype), sources)
    if gain is None:
        return h, alpha, torch.ones_like(logits[0])
    x, scale = rms_forward(h, gain, eps)
    return x, alpha, scale


def one_share(logits: Tensor, mass: float, whole: float) -> Tensor:
    """whole exp(L_n) / (mass exp L_0 + exp L_1 + ...) over the second axis."""
    if mass == whole == 1.0:
        return torch.softmax(logits, dim=1)
    found = (logits - logits.amax(1, keepdim=True)).exp()
    return found * whole / (mass * found[:, :1] + found[:, 1:].sum(1, keepdim=True))


def attend_backward(
    grad: Tensor, alpha: Tensor, sources: Sequence[Tensor], gain: Tensor | None, scale: Tensor,
    through: Sequence[Tensor | None], mass: float = 1.0, whole: float = 1.0,
) -> tuple[Tensor, list[Tensor], Tensor]:  # fmt: skip
    """dv_n = through_n + a_n dh,  dL_n = a_n (dh . v_n - m_n dh . h / whole), [sources, tokens], m_n the mass of the first
    and 1 for the others; and the gradient of the gain."""
    weights, dgain, dh = alpha.to(sources[0].dtype), scale.new_empty(0), grad
    if gain is not None:
        dh, dgain = rms_backward(grad, weighted_sum(weights, sources), gain, scale, None)
    products = torch.stack([dots(dh, v) for v in sources])
    dsources = [_past(dh * weights[:, n, None], past) for n, past in enumerate(through)]
    mean = (alpha.t() * products).sum(0) / whole
    pulls = products - mean
    if mass != 1.0:
        pulls[0] -= (mass - 1) * mean
    return alpha.t() * pulls, dsources, dgain


def _past(grad: Tensor, through: Tensor | None) -> Tensor:
    return grad if through is None else grad.add_(through)


def weighted_sum(weights: Tensor, units: Sequence[Tensor]) -> Tensor:
    """sum_n weights[:, n] v_n for one query, without a stacked copy."""
    total = None
    for n, v in enumerate(single(units)):
        weight = weights[:, n, None]
        total = weight * v if total is None else total.addcmul_(weight, v)
    assert total is not None
    return total


def single(units: Sequence[Tensor]) -> list[Tensor]:
    """The units' sources, [tokens, d] each."""
    return [v for unit in units for v in ((unit,) if unit.dim() == 2 else unit.unbind(1))]


def joined(units: Sequence[Tensor]) -> list[Tensor]:
    """The units as [tokens, sources, d]; single ones, which come first in every call, stacked for one product."""
    singles = [unit for unit in units if unit.dim() == 2]
    return [*([torch.stack(singles, dim=1)] if singles else []), *(unit for unit in units if unit.dim() == 3)]


def parted(grads: Sequence[Tensor], units: Sequence[Tensor]) -> list[Tensor]:
    """Undo `joined`."""
    singles = sum(unit.dim() == 2 for unit in units)
    return [*(grads[0].unbind(1) if singles else []), *grads[bool(singles) :]]
