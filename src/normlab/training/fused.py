"""The minimal model's equations as plain functions: its tables with their gradient, and a loss for `torch.compile`.

`whole` is the same computation as `minimal._Run`, written without work space: the compiler fuses all that lies between
the matrix products. Compiling takes half a minute or more and needs a C++ compiler; it pays for runs of tens of
thousands of steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normlab.tasks import IGNORE


class MinimalWeights(NamedTuple):
    """The model's parameters; a gain is None where its norm does not stand."""

    embedding: Tensor  # [v, d]
    embedding_gain: Tensor | None
    pre: Tensor | None
    qkv: Tensor  # [3 d_h, d]
    out: Tensor  # [d, d_h]
    res: Tensor | None
    after: Tensor | None  # the norm after the addition, or the final one
    head: Tensor | None  # [v, d]; None where it is tied to the embedding


class Tables(NamedTuple):
    """Everything that the batch does not enter."""

    stream: Tensor  # E [v, d]
    scores: Tensor  # S [v, v], row = the query's token
    values: Tensor  # W [v, d]
    res: Tensor | None
    head: Tensor  # U diag(g) [v, d]
    normed: bool  # does a norm stand between the stream and the head?


class KeptForGradient(NamedTuple):
    """What the gradient of the tables needs again."""

    x: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    eps: float


def make_tables(w: MinimalWeights, scale: float, eps: float) -> tuple[Tables, KeptForGradient]:
    stream = w.embedding if w.embedding_gain is None else _norm(w.embedding, w.embedding_gain, eps)
    x = stream if w.pre is None else _norm(stream, w.pre, eps)
    query, key, value = (x @ w.qkv.T).chunk(3, -1)
    head = w.embedding if w.head is None else w.head
    head = head if w.after is None else head * w.after
    tables = Tables(stream, query @ key.T * scale, value @ w.out.T, w.res, head, w.after is not None)
    return tables, KeptForGradient(x, query, key, value, scale, eps)


def weight_gradients(
    w: MinimalWeights, kept: KeptForGradient, stream: Tensor, slopes: tuple[Tensor, ...]
) -> MinimalWeights:
    """From the gradients of the tables (`slopes`, in their order, without an absent `res`) to those of the weights."""
    d_stream, d_scores, d_values = slopes[:3]
    d_res, d_head = (slopes[3] if w.res is not None else None), slopes[-1]
    d_qkv = torch.cat(
        [d_scores @ kept.key * kept.scale, d_scores.T @ kept.query * kept.scale, d_values @ w.out], dim=-1
    )
    d_x, d_pre, d_gain = d_qkv @ w.qkv, None, None
    if w.pre is not None:
        d_x, d_pre = _norm_gradient(stream, w.pre, kept.eps, d_x)
    d_embedding = d_stream + d_x
    if w.embedding_gain is not None:
        d_embedding, d_gain = _norm_gradient(w.embedding, w.embedding_gain, kept.eps, d_embedding)
    d_after = None
    if w.after is not None:
        d_after = (d_head * (w.embedding if w.head is None else w.head)).sum(0)
        d_head = d_head * w.after
    if w.head is None:
        d_embedding = d_embedding + d_head
    return MinimalWeights(
        d_embedding,
        d_gain,
        d_pre,
        d_qkv.T @ kept.x,
        d_values.T @ kept.value,
        d_res,
        d_after,
        None if w.head is None else d_head,
    )


def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def _norm_gradient(x: Tensor, gain: Tensor, eps: float, slope: Tensor) -> tuple[Tensor, Tensor]:
    """y = x r g, dr/dx = -r^3 x / d."""
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    along = (slope * x * gain).sum(-1, keepdim=True) * r**3 / x.shape[-1]
    return slope * gain * r - x * along, (slope * x * r).sum(0)


def whole(
    tokens: Tensor, targets: Tensor, law: Tensor | None, distinct: bool, w: MinimalWeights, scale: float, eps: float
) -> tuple[Tensor | None, ...]:
    """loss, then the gradients of the weights."""
    made, kept = make_tables(w, scale, eps)
    loss, *slopes = loss_and_gradients(tokens, targets, law, eps, distinct, made)
    return (loss, *weight_gradients(w, kept, made.stream, tuple(slopes)))


def loss_and_gradients(
    tokens: Tensor,
    targets: Tensor,
    law: Tensor | None,
    eps: float,
    distinct: bool,
    tables: Tables,
) -> tuple[Tensor, ...]:
    """loss, then the gradients of the tables that exist, in their order."""
    stream, scores, values, res, head, normed = tables
    v, d = stream.shape
    token, target, kind = tokens.flatten(), targets.flatten(), scores.dtype
    vocabulary = torch.arange(v, dtype=kind)  # comparisons of floats are vectorised, those of 64-bit integers are not
    last = (token[:, None].to(kind) == vocabulary).to(kind)
    counts = _counts(tokens, v, distinct, last)

    a = torch.where(counts > 0, scores[token], -torch.inf)  # the shift is by the best token that is present
    a = (a - a.amax(-1, keepdim=True)).exp() * counts
    a = a / a.sum(-1, keepdim=True)
    y = a @ values
    r_y = torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    h = stream[token] + (y if res is None else y * r_y * res)
    r_h = torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) if normed else None
    plain = h @ head.T
    z = plain if r_h is None else plain * r_h

    scored = target != IGNORE
    weight = scored.to(kind) / scored.sum()
    if law is None:
        law = (target[:, None].to(kind) == vocabulary).to(kind)
    z = z - z.amax(-1, keepdim=True)
    p = z.exp()
    total = p.sum(-1, keepdim=True)
    loss = ((total.log().squeeze(-1) - (z * law).sum(-1)) * weight).sum()

    s = (p / total - law) * weight[:, None]
    if r_h is None:
        dh = s @ head
    else:
        along = (s * plain).sum(-1, keepdim=True)
        s = s * r_h
        dh = s @ head - h * (along * r_h**3 / d)
    gains: list[Tensor] = []
    dy = dh
    if res is not None:
        product = dh * y
        gains = [(product * r_y).sum(0)]
        dy = dh * res * r_y - y * ((product * res).sum(-1, keepdim=True) * r_y**3 / d)
    da = dy @ values.T
    da = a * (da - (da * a).sum(-1, keepdim=True))
    return (loss, last.T @ dh, last.T @ da, a.T @ dy, *gains, s.T @ h)


def _counts(tokens: Tensor, v: int, distinct: bool, last: Tensor) -> Tensor:
    """How often each token occurs in each prefix, [batch * length, v]."""
    batch, length = tokens.shape
    if not distinct:
        return last.view(batch, length, v).cumsum(1).view(-1, v)
    place = torch.arange(length, dtype=last.dtype)
    when = torch.full((batch, v), float(length), dtype=last.dtype).scatter(1, tokens, place.expand(batch, length))
    return (when[:, None, :] <= place[None, :, None]).to(last.dtype).view(-1, v)
