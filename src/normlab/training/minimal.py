"""The minimal model, fast and exact: one layer, attention only, one head, no positions.

There everything factors through tables over the vocabulary. Scores depend on a pair of tokens, values on one token, so
with `n_j` the number of times token j occurs in the prefix (0 or 1 where tokens are distinct) and x its last token

    a_j = n_j exp(S[x, j]) / sum_k n_k exp(S[x, k])          attention over the vocabulary
    h   = E[x] + res( a W )                                  E [v, d] stream table, W [v, d] values through W_O
    z   = U (g h / rms(h))                                   the norm after the addition, or the final one

E, S and W come from the model's own parameters through autograd (tables of 32 rows); everything of size batch x length
is the function below, with its gradient written out: no score matrix over positions, no projections of every token,
work space that is reused. Losses and gradients equal the general model's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.model import Attention, Transformer
from normlab.schemes.norms import RMSNorm
from normlab.tasks import IGNORE, Batch

SCHEMES = ("pre_norm", "post_norm", "peri_norm", "peri_init_norm", "res_norm")


def why_not(model: nn.Module) -> str | None:
    """The first reason why a model is outside the fast path, or None."""
    if not isinstance(model, Transformer):
        return f"{type(model).__name__} is not normlab's Transformer"
    config = model.config
    if config.scheme.name not in SCHEMES:
        return f"the scheme {config.scheme.name!r} is not one of {', '.join(SCHEMES)}"
    wanted: dict[str, Any] = {
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
        "embedding_scale": 1.0,
    }
    for key, value in wanted.items():
        if getattr(config, key) != value:
            return f"{key} is {getattr(config, key)!r}, not {value!r}"
    if not isinstance(model.embedding, nn.Embedding):
        return "its tokens are not embedded by a table"
    scheme: Any = model.scheme
    after = [norm for norm in (scheme.out[0], scheme.final) if isinstance(norm, RMSNorm)]
    if len(after) != 1:
        return f"it has {len(after)} norms after the addition, not 1"
    return None


class Tables(NamedTuple):
    """Everything that the batch does not enter."""

    stream: Tensor  # E [v, d]
    scores: Tensor  # S [v, v], row = the query's token
    values: Tensor  # W [v, d]
    res: Tensor | None  # gain of the norm on the branch, where there is one
    head: Tensor  # U diag(g) [v, d]


def tables(model: Transformer) -> Tables:
    """The model's tables, differentiable in its parameters."""
    scheme: Any = model.scheme
    attention = model.branches[0]
    assert isinstance(attention, Attention)
    stream = scheme.embedding(model.embedding.weight)
    query, key, value = attention.qkv(scheme.pre[0](stream)).chunk(3, -1)
    res = scheme.res[0].weight if isinstance(scheme.res[0], RMSNorm) else None
    head = model.embedding.weight if model.head is None else model.head.weight
    return Tables(
        stream, query @ key.T * attention.scale, attention.out(value), res, head * _after(model).weight
    )


def _after(model: Transformer) -> RMSNorm:
    scheme: Any = model.scheme
    return scheme.out[0] if isinstance(scheme.out[0], RMSNorm) else scheme.final


class FastMinimal:
    """`fast(model, batch)` is the loss; usable as `Trainer(..., loss=FastMinimal(model, task.targets))`.

    Work space belongs to this object and is reused from call to call, so one object serves one thread.
    """

    def __init__(self, model: nn.Module, *, exact: bool = False) -> None:
        reason = why_not(model)
        if reason is not None:
            raise UnsupportedError(f"the fast path is for the minimal model only: {reason}")
        self.exact = exact
        self._space: dict[Any, Tensor] = {}

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, Transformer)
        made = tables(model)
        inputs = [t for t in made if t is not None]
        law = None
        if self.exact:
            assert batch.law is not None
            law = batch.law.to(made.scores.dtype).flatten(0, 1)
        return _Loss.apply(self, batch.tokens, batch.targets, law, _after(model).eps, made.res is not None, *inputs)

    def space(self, name: str, *shape: int, like: Tensor) -> Tensor:
        key = (name, shape, like.dtype)
        if key not in self._space:
            self._space[key] = torch.empty(shape, dtype=like.dtype)
        return self._space[key]


class _Loss(torch.autograd.Function):
    """Loss and its gradient in one go: the loss is a scalar, so the backward pass only scales."""

    @staticmethod
    def forward(ctx: Any, own: FastMinimal, tokens: Tensor, targets: Tensor, law: Tensor | None, eps: float,
                has_res: bool, *inputs: Tensor) -> Tensor:  # fmt: skip
        stream, scores, values = inputs[:3]
        res, head = (inputs[3], inputs[4]) if has_res else (None, inputs[3])
        run = _Run(own, tokens, Tables(stream, scores, values, res, head), eps)
        loss = run.forward(targets.flatten(), law)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*run.backward())
        return loss

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        return (None,) * 6 + tuple(outputs[0] * gradient for gradient in ctx.saved_tensors)


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
        self.ones_v, self.ones_d = (made.scores.new_ones(n) for n in (self.v, self.d))

    def space(self, name: str, width: int) -> Tensor:
        return self.own.space(name, self.rows, width, like=self.made.scores)

    def _prefixes(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The last token as a one-hot row, and how often each token occurs in the prefix."""
        batch, length = tokens.shape
        last, counts = self.space("last", self.v), self.space("counts", self.v)
        by_place = (batch, length, self.v)
        places = torch.arange(length).expand_as(tokens)
        when = torch.full((batch, self.v), length).scatter(1, tokens, places)
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
        powers = (made.scores - made.scores.amax(-1, keepdim=True)).exp()
        a = self.a = torch.index_select(powers, 0, self.token, out=self.space("a", self.v))
        a.mul_(self.counts)
        a.div_(torch.mv(a, self.ones_v)[:, None])
        h = self.h = torch.index_select(made.stream, 0, self.token, out=self.space("h", d))
        if made.res is None:
            h.addmm_(a, made.values)
        else:
            y = self.y = torch.mm(a, made.values, out=self.space("y", d))
            self.inverse_y = self._inverse_rms(y)
            h.add_(torch.mul(y, self.inverse_y[:, None], out=self.space("spare", d)).mul_(made.res))
        self.inverse_h = self._inverse_rms(h)
        plain = self.plain = torch.mm(h, made.head.T, out=self.space("plain", self.v))
        z = torch.mul(plain, self.inverse_h[:, None], out=self.space("z", self.v))
        return self._cross_entropy(z, targets, law)

    def _inverse_rms(self, x: Tensor) -> Tensor:
        squares = torch.mul(x, x, out=self.space("spare", self.d))
        return torch.mv(squares, self.ones_d).div_(self.d).add_(self.eps).rsqrt_()

    def _cross_entropy(self, z: Tensor, targets: Tensor, law: Tensor | None) -> Tensor:
        """The loss, and in `self.slope` its gradient in z."""
        ignored = targets == IGNORE
        skip = bool(ignored.any())
        weight = 1.0 / (self.rows - int(ignored.sum()) if skip else self.rows)
        answer = (targets.clamp_min(0) if skip else targets)[:, None]
        hit = z.gather(1, answer).squeeze(1) if law is None else torch.mul(z, law).sum(-1)
        # One shift for all rows saves a pass; rows far below it would lose digits, so then each gets its own.
        low, top = torch.aminmax(z)
        if float(top - low) > 60:
            top = z.amax(-1, keepdim=True)
        p = self.slope = z.sub_(top).exp_()
        total = torch.mv(p, self.ones_v)
        terms = total.log().add_(top.view(-1)).sub_(hit)
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
        # z = r (h U^T), r = (|h|^2/d + eps)^-1/2, dr/dh = -r^3 h / d
        along = torch.mv(torch.mul(s, self.plain, out=self.plain), self.ones_v)
        s.mul_(self.inverse_h[:, None])
        head = torch.mm(s.T, h)
        dh = torch.mm(s, made.head, out=self.space("dh", d))
        dh.add_(h.mul_(along.mul_(self.inverse_h**3).div_(-d)[:, None]))
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
        da.sub_(torch.mv(torch.mul(da, a, out=self.plain), self.ones_v)[:, None]).mul_(a)
        return [stream, torch.mm(self.last.T, da), values, *gains, head]


def attention_rows(model: Transformer, tokens: Tensor) -> Tensor:
    """Attention of the last position of each row over its own tokens, [batch, length]: for looking at a trained model."""
    scores = tables(model).scores[tokens[:, -1:], tokens]
    return F.softmax(scores, -1)


def entropy(weights: Tensor) -> Tensor:
    """Entropy of attention relative to its largest, log(length)."""
    return -(torch.xlogy(weights, weights).sum(-1)) / math.log(max(weights.shape[-1], 2))
