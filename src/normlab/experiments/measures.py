"""What the layers of a model do, on one batch: sizes, gradients, influence, what may be removed, how depth is mixed.

Lists over *branches* have M = 2L entries (attention, FFN, attention, ...), lists over *reads* M + 1 (the last is what
the head reads, before the final norm), lists over *layers* L. A list is None where the scheme does not define it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.experiments.runs.score import EFFECT_SEQUENCES
from normlab.model import Transformer
from normlab.observe.effect import branch_effects
from normlab.observe.portrait import Walk, portrait
from normlab.probes.measure.metrics import block_influence, token_cosine
from normlab.surgery.backbone.model import Backbone
from normlab.tasks import IGNORE, Batch

Measured = Transformer | Backbone
Model = TypeVar("Model", bound=Measured)
Loss = Callable[[Model, Batch], Tensor]
MIXING_TOKENS = 32


@dataclass(frozen=True)
class LayerMeasures:
    """What the layers do. Sizes and gradients are defined in `observe.portrait`, effects in `observe.effect`."""

    magnitude: list[float] | None = None
    embedding: float | None = None
    output: list[float] | None = None
    contribution: list[float | None] | None = None
    effect: list[float] | None = None
    token_cosine: list[float] | None = None
    block_influence: list[float] | None = None
    gradient: list[float] | None = None
    gradient_share: list[float] | None = None
    mixing: list[list[float]] | None = None
    independent: list[float] | None = None
    skip: list[float] | None = None
    prune_order: list[int] | None = None
    prune: list[float] | None = None


@dataclass(frozen=True)
class PruneCurve:
    """What layers are worth: loss added without each alone, their order by it, loss without the k least useful."""

    skip: list[float]
    order: list[int]
    curve: list[float]


def layer_measures(
    model: Model, batch: Batch, loss: Loss[Model], *, prune: bool = True, more: Sequence[Batch] = ()
) -> LayerMeasures:
    """Everything above as plain lists; gradients are means over this batch and `more`.

    The model's weights, gradients, mode and random state are left as they were.
    """
    was_training = model.training
    model.eval()
    try:
        found, seen = portrait(model, lambda: loss(model, batch))
        with torch.no_grad():
            cosines, influences = _angles(model, seen)
        del seen  # and with it the graph
        looks = [found, *(portrait(model, partial(loss, model, other))[0] for other in more)]
        effects = branch_effects(model, batch.tokens[:EFFECT_SEQUENCES])
        mixing = mean_mixing(model, batch.tokens)
        worth = prune_curve(model, batch, loss) if prune else None
    finally:
        model.train(was_training)
    return LayerMeasures(
        magnitude=found.reads,
        embedding=found.embedding,
        output=found.added,
        contribution=found.contributions,
        effect=effects,
        token_cosine=cosines,
        block_influence=influences,
        gradient=_mean([look.layer_gradients for look in looks]),
        gradient_share=_mean([look.gradient_shares for look in looks]),
        mixing=mixing,
        independent=independent_sum(mixing, found.added, found.embedding),
        skip=None if worth is None else worth.skip,
        prune_order=None if worth is None else worth.order,
        prune=None if worth is None else worth.curve,
    )


def _mean(lists: Sequence[Sequence[float] | None]) -> list[float] | None:
    """Entry by entry."""
    known = [values for values in lists if values is not None]
    return [statistics.fmean(column) for column in zip(*known, strict=True)] if known else None


def _angles(model: Measured, seen: Walk) -> tuple[list[float] | None, list[float] | None]:
    """Between two tokens, at each read; and between what a layer reads and what the next one does."""
    if not seen.complete:
        return None, None
    reads = [h.detach() for h in seen.reads]
    starts = [*(reads[site.index] for site in model.sites if site.opens_layer), reads[-1]]
    influences = [float(block_influence(a, b)) for a, b in pairwise(starts)]
    return [float(token_cosine(h).mean()) for h in reads], influences


def mean_mixing(model: Measured, tokens: Tensor) -> list[list[float]] | None:
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
def prune_curve(model: Model, batch: Batch, loss: Loss[Model]) -> PruneCurve:
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
    return PruneCurve([value - whole for value in alone], order, curve)


@contextmanager
def without(model: Measured, layers: Collection[int]) -> Iterator[None]:
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
