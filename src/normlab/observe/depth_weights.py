"""What attention over depth does to its sources: who dominates when one of them is large, and where gradients go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.model import Transformer
from normlab.schemes.depth_stream import DepthAttention

DOMINANT = 0.9  # a weight above this leaves a tenth to all others together


def depth_attention(model: Transformer) -> DepthAttention:
    if not isinstance(model.scheme, DepthAttention):
        raise UnsupportedError(f"{model.config.scheme.name} has no attention over depth; take attn_res")
    return model.scheme


@torch.no_grad()
def sources_of(model: Transformer, tokens: Tensor) -> Tensor:
    """[sources, batch, time, dim]: the embedding and every branch's output."""
    with depth_attention(model).taped() as tape:
        model.features(tokens)
    return torch.stack(tape.sources)


@dataclass(frozen=True)
class Dominance:
    """Over all reads with two sources or more, each of their sources in turn, and all tokens."""

    plain: float
    """Mean weight of a source as it is: one over the number of sources, averaged over reads."""
    scaled: float
    """Mean weight of a source that alone has become larger."""
    moved: float
    """Mean change of a source's weight, up or down."""
    dominant: float
    """Share of cases in which the scaled source takes more than nine tenths of the weight; minus the same unscaled."""


@torch.no_grad()
def dominance(model: Transformer, tokens: Tensor, *, scale: float = 100.0) -> Dominance:
    """What happens to a source's weight when it alone becomes `scale` times as large (Full Attention Residuals)."""
    scheme, sources = depth_attention(model), sources_of(model, tokens)
    if not scheme.single:
        raise UnsupportedError("sources of blocks are sums: measure dominance on attn_res (Full)")
    plains, scaled, moved, taken, before = [], [], [], [], []
    for read in range(1, len(scheme.frame.sites) + 1):
        values = sources[: read + 1]
        plain = torch.softmax(scheme.logits(values, read), 0).mean(-1)
        for i in range(len(values)):
            larger = values.clone()
            larger[i] *= scale
            weight = torch.softmax(scheme.logits(larger, read), 0).mean(-1)[i]
            plains.append(plain[i].mean())
            scaled.append(weight.mean())
            moved.append((weight - plain[i]).abs().mean())
            taken.append((weight > DOMINANT).double().mean())
            before.append((plain[i] > DOMINANT).double().mean())
    change = torch.stack(taken).mean() - torch.stack(before).mean()
    one, other, third = (float(torch.stack(values).mean()) for values in (plains, scaled, moved))
    return Dominance(one, other, third, float(change))


@dataclass(frozen=True)
class SourceGradients:
    """n |gradient to a source through a read| / |gradient at the read|; 1 for every source where weights are equal."""

    others: float
    """Median over reads, tokens and all sources but the one with the largest weight."""
    top: float
    """The same for the source with the largest weight."""


def source_gradients(model: Transformer, tokens: Tensor, targets: Tensor) -> SourceGradients:
    """Both ways count: through the value, and through the key that decides the weights. Full Attention Residuals only.

    In a plain residual stream each source gets the whole gradient of a read, as all others do; its equal is a softmax with
    equal weights, where each gets 1/n. So n times the share says what the competition changes.
    """
    scheme = depth_attention(model)
    with torch.enable_grad(), scheme.taped() as tape:
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    upstream = torch.autograd.grad(loss, tape.reads)
    others, tops = [], []
    for read in range(1, len(tape.reads)):
        values = torch.stack(tape.sources[: read + 1]).detach().requires_grad_()
        weights = torch.softmax(scheme.logits(values, read), 0)
        h = (weights * values).sum(0)
        (gradient,) = torch.autograd.grad(h, values, upstream[read])
        share = len(values) * gradient.double().norm(dim=-1) / upstream[read].double().norm(dim=-1)
        best = torch.nn.functional.one_hot(weights.detach().mean(-1).argmax(0), len(values)).movedim(-1, 0).bool()
        others.append(share[~best].flatten())
        tops.append(share[best].flatten())
    return SourceGradients(float(torch.cat(others).median()), float(torch.cat(tops).median()))
