"""What the layers of a model do, on one batch: sizes, gradients, influence, what may be removed, how depth is mixed.

Lists over *branches* have M = 2L entries (attention, FFN, attention, ...), lists over *reads* M + 1 (the last is what
the head reads, before the final norm), lists over *layers* L. A list is None where the scheme does not define it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.model import Transformer
from normlab.probes.measure.metrics import block_influence, token_cosine
from normlab.tasks import IGNORE, Batch

Loss = Callable[[Transformer, Batch], Tensor]
MIXING_TOKENS = 32


def layer_measures(model: Transformer, batch: Batch, loss: Loss, *, prune: bool = True) -> dict[str, Any]:
    """Everything above as plain lists. The model's weights, gradients, mode and random state are left as they were."""
    was_training = model.training
    model.eval()
    try:
        found = {**stream_measures(model, batch.tokens), **gradient_shares(model, batch, loss)}
        found["mixing"] = mixing = mean_mixing(model, batch.tokens)
        found["independent"] = independent_sum(mixing, found["output"], found["embedding"])
        if prune:
            found.update(prune_curve(model, batch, loss))
    finally:
        model.train(was_training)
    return found


@torch.no_grad()
def stream_measures(model: Transformer, tokens: Tensor) -> dict[str, Any]:
    """Magnitudes (root mean squares), contributions, token cosine and block influence from one forward pass."""
    with model.scheme.taped() as tape:
        model.features(tokens)
    reads, branches = tape.reads, len(model.sites)
    complete = len(reads) == branches + 1
    sizes = [_rms(h) for h in reads] if complete else None
    has_embedding = len(tape.sources) == branches + 1
    sources = [_rms(v) for v in tape.sources]
    outputs = (sources[1:] if has_embedding else sources) if len(sources) >= branches else None
    starts = [reads[site.index] for site in model.sites if site.opens_layer] + [reads[-1]] if complete else []
    return {
        "magnitude": sizes,
        "embedding": sources[0] if has_embedding else None,
        "output": outputs,
        "contribution": [v / h if h > 0 else None for v, h in zip(outputs, sizes, strict=False)]
        if outputs and sizes
        else None,
        "token_cosine": [float(token_cosine(h).mean()) for h in reads] if complete else None,
        "block_influence": [float(block_influence(a, b)) for a, b in pairwise(starts)] or None,
    }


def gradient_shares(model: Transformer, batch: Batch, loss: Loss) -> dict[str, Any]:
    """The norm of the loss gradient in each layer's branches, and its share of the sum over layers."""
    owner = {id(p): site.layer - 1 for site, b in zip(model.sites, model.branches, strict=True) for p in b.parameters()}
    parameters = [p for p in model.branches.parameters() if p.requires_grad]
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss(model, batch), parameters, allow_unused=True)
    squares = [0.0] * model.config.depth
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            squares[owner[id(parameter)]] += float(gradient.double().square().sum())
    norms = [square**0.5 for square in squares]
    total = sum(norms)
    return {"gradient": norms, "gradient_share": [norm / total for norm in norms] if total > 0 else None}


def mean_mixing(model: Transformer, tokens: Tensor) -> list[list[float]] | None:
    """The depth-mixing matrix, averaged over tokens; None where what a branch reads is no linear mix."""
    try:
        matrix = model.depth_mixing(tokens[:1, :MIXING_TOKENS])
    except UnsupportedError:
        return None
    return [[round(value, 6) for value in row] for row in matrix.mean((0, 1)).tolist()]


def independent_sum(
    mixing: list[list[float]] | None, output: list[float] | None, embedding: float | None
) -> list[float] | None:
    """Magnitude of each read if the sources were orthogonal: sqrt(sum_i M[l, i]^2 rms(v_i)^2). The theory's assumption."""
    if mixing is None or output is None or embedding is None:
        return None
    sizes = [embedding, *output]
    return [sum((m * v) ** 2 for m, v in zip(row, sizes, strict=False)) ** 0.5 for row in mixing]


@torch.no_grad()
def prune_curve(model: Transformer, batch: Batch, loss: Loss) -> dict[str, Any]:
    """Loss without each layer alone, and without the k least useful ones, k = 0 .. L/2, in the order of the first."""
    depth = model.config.depth
    whole = float(loss(model, batch))
    alone = []
    for layer in range(depth):
        with without(model, {layer}):
            alone.append(float(loss(model, batch)))
    order = sorted(range(depth), key=lambda layer: alone[layer])
    curve = [whole]
    for count in range(1, depth // 2 + 1):
        if count == 1:
            curve.append(alone[order[0]])
            continue
        with without(model, set(order[:count])):
            curve.append(float(loss(model, batch)))
    return {"skip": [value - whole for value in alone], "prune_order": order, "prune": curve}


@contextmanager
def without(model: Transformer, layers: Collection[int]) -> Iterator[None]:
    """The model without some layers (counted from 0): they write nothing.

    A single tensor passes by as it is, so that a Post-Norm layer is gone with its norm; a stream of numbered sources
    keeps the entry, which is zero.
    """
    scheme: Any = model.scheme
    write = scheme.write

    def skipping(stream: Any, y: Tensor, carry: Any, site: Any) -> Any:
        if site.layer - 1 not in layers:
            return write(stream, y, carry, site)
        return stream if isinstance(stream, Tensor) else write(stream, torch.zeros_like(y), carry, site)

    scheme.write = skipping
    try:
        yield
    finally:
        del scheme.write


def context_free_loss(batches: Sequence[Batch]) -> float:
    """The least loss, on these very sequences, of a prediction that is the same everywhere: the entropy of the targets.

    A model that stays above it has learned, at best, how frequent each token is.
    """
    laws = [batch.law.flatten(0, -2).sum(0) for batch in batches if batch.law is not None]
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    total = torch.stack(laws).sum(0) if laws else torch.bincount(targets[targets != IGNORE]).double()
    share = total[total > 0] / total.sum()
    return float(-(share * share.log()).sum())


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
