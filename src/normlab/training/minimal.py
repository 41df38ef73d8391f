"""The minimal model, fast and exact: one layer, attention only, one head, no positions.

There everything factors through tables over the vocabulary. Scores depend on a pair of tokens, values on one token, so
with `n_j` the number of times token j occurs in the prefix (0 or 1 where tokens are distinct) and x its last token

    a_j = n_j exp(S[x, j]) / sum_k n_k exp(S[x, k])          attention over the vocabulary
    h   = E[x] + res( a W )                                  E [v, d] stream table, W [v, d] values through W_O
    z   = U (g h / rms(h))                                   the norm after the addition, or the final one
    z   = U h                                                where neither stands

E, S and W are small and come from the model's own parameters (`fused`). The whole is one function with its gradient
written out: no score matrix over positions, no projections of every token, work space that is reused. Losses and
gradients equal the general model's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.model import Attention, Transformer
from normlab.schemes.norms import RMSNorm
from normlab.schemes.placement import Placement
from normlab.tasks import IGNORE, Batch
from normlab.training.fused import MinimalWeights, Tables, make_tables, weight_gradients, whole

SCHEMES = ("pre_norm", "post_norm", "peri_norm", "peri_init_norm", "res_norm", "no_norm")


def why_not(model: nn.Module) -> str | None:
    """The first reason why a model is outside the fast path, or None."""
    if not isinstance(model, Transformer):
        return f"{type(model).__name__} is not normlab's Transformer"
    config = model.config
    if config.scheme.name not in SCHEMES:
        return f"the scheme {config.scheme.name!r} is not one of {', '.join(SCHEMES)}"
    wanted: dict[str, object] = {
        "depth": 1,
        "heads": 1,
        "ffn": "none",
        "positions": "nope",
        "causal": True,
        "norm": "rmsnorm",
        "softmax": "plain",
        "head_norm": False,
        "qk_norm": None,
        "bias": False,
        "dropout": 0.0,
        "scale_of_embedding": 1.0,  # embedding_scale=1: at the fair start it is sqrt(dim)
    }
    for key, value in wanted.items():
        if getattr(config, key) != value:
            return f"{key} is {getattr(config, key)!r}, not {value!r}"
    if not isinstance(model.embedding, nn.Embedding):
        return "its tokens are not embedded by a table"
    scheme = placed(model)
    after = [norm for norm in (scheme.out[0], scheme.final) if isinstance(norm, RMSNorm)]
    if len(after) > 1:
        return f"it has {len(after)} norms after the addition, not one or none"
    return None


def placed(model: Transformer) -> Placement:
    """Its scheme: all of `SCHEMES` are rows of the single-stream table."""
    assert isinstance(model.scheme, Placement)
    return model.scheme


def weights(model: Transformer) -> MinimalWeights:
    """The parameters that enter, by their part in the equations."""
    scheme = placed(model)
    attention = model.branches[0]
    assert isinstance(attention, Attention)

    def gain(norm: nn.Module) -> Tensor | None:
        return norm.weight if isinstance(norm, RMSNorm) else None

    return MinimalWeights(
        model.embedding.weight,
        gain(scheme.embedding),
        gain(scheme.pre[0]),
        attention.qkv.weight,
        attention.out.weight,
        gain(scheme.res[0]),
        gain(after_norm(model)),
        None if model.head is None else model.head.weight,
    )


def after_norm(model: Transformer) -> nn.Module:
    """The norm between the addition and the head; an identity where none stands."""
    scheme = placed(model)
    return scheme.out[0] if isinstance(scheme.out[0], RMSNorm) else scheme.final


def tables(model: Transformer) -> Tables:
    """The model's tables, differentiable in its parameters."""
    return make_tables(weights(model), model.branches[0].scale, model.config.eps)[0]  # type: ignore[arg-type]


class FastMinimal:
    """`fast(model, batch)` is the loss; usable as `Trainer(..., loss=FastMinimal(model, task.targets))`.

    Work space belongs to this object and is reused from call to call, so one object serves one thread.
    """

    def __init__(self, model: nn.Module, *, exact: bool = False, compiled: bool = False) -> None:
        reason = why_not(model)
        if reason is not None:
            raise UnsupportedError(f"the fast path is for the minimal model only: {reason}")
        self.exact = exact
        self.fused = torch.compile(whole, dynamic=False, options={"cpp_wrapper": True}) if compiled else None
        self._space: dict[object, Tensor] = {}

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, Transformer)
        law = None
        if self.exact:
            assert batch.law is not None
            law = batch.law.to(model.embedding.weight.dtype).flatten(0, 1)
        scale = float(model.branches[0].scale)  # type: ignore[arg-type]
        return _Loss.apply(self, batch.tokens, batch.targets, law, scale, model.config.eps, *weights(model))

    def space(self, name: str, *shape: int, like: Tensor) -> Tensor:
        key = (name, shape, like.dtype)
        if key not in self._space:
            self._space[key] = torch.empty(shape, dtype=like.dtype)
        return self._space[key]


class _Loss(torch.autograd.Function):
    """Loss and its gradient in one go: the loss is a scalar, so the backward pass only scales."""

    @staticmethod
    def forward(ctx: Any, own: FastMinimal, tokens: Tensor, targets: Tensor, law: Tensor | None, scale: float,
                eps: float, *parameters: Tensor | None) -> Tensor:  # fmt: skip
        w = MinimalWeights(*parameters)  # type: ignore[arg-type]
        if own.fused is not None:
            distinct = _distinct(tokens, len(w.embedding))
            loss, *gradients = own.fused(tokens, targets, law, distinct, w, scale, eps)
            ctx.save_for_backward(*gradients)
            return loss  # type: ignore[return-value]
        made, kept = make_tables(w, scale, eps)
        run = _Run(own, tokens, made, eps)
        loss = run.forward(targets.flatten(), law)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*weight_gradients(w, kept, made.stream, tuple(run.backward())))
        return loss

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        # `loss.backward()` hands in 1 and accumulation 1/n; a product with 1 is exact, so there is no special case.
        return (None,) * 6 + tuple(None if g is None else outputs[0] * g for g in ctx.saved_tensors)


def _places(tokens: Tensor, v: int) -> tuple[Tensor, Tensor]:
    """The place of each token of the vocabulary in each sequence (its length where absent), and 0, 1, 2, ..."""
    batch, length = tokens.shape
    places = torch.arange(length).expand_as(tokens)
    return torch.full((batch, v), length).scatter(1, tokens, places), places


def _distinct(tokens: Tensor, v: int) -> bool:
    """Does no token occur twice? A repeated one has room for one of its places only."""
    when, places = _places(tokens, v)
    return torch.equal(when.gather(1, tokens), places)


class _Run:
    """All large arrays are [prefixes, features] in work space that stays: fresh megabytes cost a page fault each 4 KB.

    Sums over features are matrix-vector products, and sums over prefixes are matrix products with the tall side
    transposed (the form that the BLAS does at full speed).
    """

    def __init__(self, own: FastMinimal, tokens: Tensor, made: Tables, eps: float) -> None:
        self.own, self.made, self.eps = own, made, eps
        self.rows, (self.v, self.d) = tokens.numel(), made.stream.shape
        self.token = tokens.flatten()
        self.last, self.counts = self._prefixes(tokens)
        self.ones_v = made.scores.new_ones(self.v)

    def space(self, name: str, width: int) -> Tensor:
        return self.own.space(name, self.rows, width, like=self.made.scores)

    def _prefixes(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The last token as a one-hot row, and how often each token occurs in the prefix."""
        batch, length = tokens.shape
        last, counts = self.space("last", self.v), self.space("counts", self.v)
        by_place = (batch, length, self.v)
        when, places = _places(tokens, self.v)
        if torch.equal(when.gather(1, tokens), places):  # no token occurs twice
            time = torch.arange(length, dtype=last.dtype)[None, :, None]
            seen = when.to(last.dtype)[:, None, :]
            torch.eq(seen, time, out=last.view(by_place))
            torch.le(seen, time, out=counts.view(by_place))
        else:
            last.zero_().scatter_(1, self.token[:, None], 1.0)
            torch.cumsum(last.view(by_place), 1, out=counts.view(by_place))
        return last, counts

    def forward(self, targets: Tensor, law: Tensor | None) -> Tensor:
        made, d = self.made, self.d
        a = self.a = self.space("a", self.v)
        low, high = made.scores.amin(-1, keepdim=True), made.scores.amax(-1, keepdim=True)
        if float((high - low).max()) < 60:
            torch.index_select((made.scores - high).exp(), 0, self.token, out=a)
        else:  # a prefix may hold only tokens that are far below the row's best: shift by the best that is present
            torch.index_select(made.scores, 0, self.token, out=a)
            a.masked_fill_(self.counts == 0, -math.inf)
            a.sub_(a.amax(-1, keepdim=True)).exp_()
        a.mul_(self.counts)
        a.div_(torch.mv(a, self.ones_v)[:, None])
        h = self.h = torch.index_select(made.stream, 0, self.token, out=self.space("h", d))
        if made.res is None:
            h.addmm_(a, made.values)
        else:
            y = self.y = torch.mm(a, made.values, out=self.space("y", d))
            self.inverse_y = self._inverse_rms(y)
            h.add_(torch.mul(y, self.inverse_y[:, None], out=self.space("spare", d)).mul_(made.res))
        plain = self.plain = torch.mm(h, made.head.T, out=self.space("plain", self.v))
        if not made.normed:
            return self._cross_entropy(plain, targets, law)
        self.inverse_h = self._inverse_rms(h)
        z = torch.mul(plain, self.inverse_h[:, None], out=self.space("z", self.v))
        return self._cross_entropy(z, targets, law)

    def _inverse_rms(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1).square_().div_(self.d).add_(self.eps).rsqrt_()

    def _cross_entropy(self, z: Tensor, targets: Tensor, law: Tensor | None) -> Tensor:
        """The loss, and in `self.slope` its gradient in z."""
        ignored = targets == IGNORE
        skip = bool(ignored.any())
        weight = 1.0 / (self.rows - int(ignored.sum()) if skip else self.rows)
        answer = (targets.clamp_min(0) if skip else targets)[:, None]
        hit = z.gather(1, answer).squeeze(1) if law is None else torch.mul(z, law).sum(-1)
        # |z| <= sqrt(d) |row of U|, since h / rms(h) has the norm sqrt(d): most often exp needs no shift at all.
        if self.made.normed and float(self.made.head.square().sum(-1).max()) * self.d < 40.0**2:
            terms = hit.neg_()
        else:
            top = z.amax(-1)
            z.sub_(top[:, None])
            terms = top.sub_(hit)
        p = self.slope = z.exp_()
        total = torch.mv(p, self.ones_v)
        terms += total.log()
        share = total.reciprocal_().mul_(weight)
        if skip:
            terms.masked_fill_(ignored, 0.0)
            share.masked_fill_(ignored, 0.0)
        p.mul_(share[:, None])
        if law is None:
            minus = torch.full_like(share, -weight)
            p.scatter_add_(1, answer, (minus.masked_fill_(ignored, 0.0) if skip else minus)[:, None])
        else:  # a prefix without a law has a row of zeros
            p.sub_(law, alpha=weight)
        return terms.sum() * weight

    def backward(self) -> list[Tensor]:
        made, d = self.made, self.d
        s, h, a = self.slope, self.h, self.a
        if made.normed:  # z = r (h U^T), r = (|h|^2/d + eps)^-1/2, dr/dh = -r^3 h / d
            along = torch.mv(torch.mul(s, self.plain, out=self.plain), self.ones_v)
            s.mul_(self.inverse_h[:, None])
            head = torch.mm(s.T, h)
            dh = h.mul_(along.mul_(self.inverse_h**3).div_(-d)[:, None]).addmm_(s, made.head)
        else:
            head = torch.mm(s.T, h)
            dh = torch.mm(s, made.head, out=h)
        stream = torch.mm(self.last.T, dh)
        gains = []
        if made.res is not None:
            r, y = self.inverse_y, self.y
            product = torch.mul(dh, y, out=self.space("spare", d))
            gains = [torch.mv(product.T, r)]
            along = torch.mv(product, made.res).mul_(r**3).div_(-d)
            dh.mul_(made.res).mul_(r[:, None]).add_(y.mul_(along[:, None]))
        values = torch.mm(a.T, dh)
        da = torch.mm(dh, made.values.T, out=self.space("da", self.v))
        # `plain` is free by now, but without a norm it is `slope` too, which has been read for the last time.
        da.sub_(torch.mv(torch.mul(da, a, out=self.plain), self.ones_v)[:, None]).mul_(a)
        return [stream, torch.mm(self.last.T, da), values, *gains, head]


def attention_rows(model: Transformer, tokens: Tensor) -> Tensor:
    """Attention of the last position of each row over its own tokens, [batch, length]: for looking at a trained model."""
    scores = tables(model).scores[tokens[:, -1:], tokens]
    return F.softmax(scores, -1)


def entropy(weights: Tensor) -> Tensor:
    """Entropy of attention relative to its largest, log(length)."""
    return -(torch.xlogy(weights, weights).sum(-1)) / math.log(max(weights.shape[-1], 2))
