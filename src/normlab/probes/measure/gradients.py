"""Gradients of a real loss, per layer and per branch, before any clipping."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.table import GradientRow, Number, Real
from normlab.probes.trace.hooks import Layout, Record, slow_path
from normlab.stats import standard_error, t_reach


@dataclass(frozen=True)
class PullRow:
    """d loss / d log scale of one parameter, <w, dL/dw>: training leaves none. `layer` is -1 outside of the layers.

    Positive: the loss falls if the parameter shrinks. `size` is |w| |dL/dw| of one batch, `steady` the part of it on
    which batches agree; both in nats per unit of relative change.
    """

    layer: int
    name: str
    pull: Real
    size: Number = None
    steady: Number = None


@dataclass(frozen=True)
class NoiseReading:
    """How many targets must be averaged until the gradient is more than noise (McCandlish et al. 2018: B_simple).

    It grows as a model learns: batches of a trained one hardly agree on what to change. `high` takes the agreement
    at its lower limit (inf: none is certain). Parameters count relative to their size.
    """

    targets: Real
    high: Real
    batches: int


@dataclass(frozen=True)
class Gradients:
    rows: list[GradientRow]
    loss: float
    pulls: tuple[PullRow, ...]
    noise: NoiseReading | None = None


def measure(layout: Layout, batches: Iterable[object], loss: Loss) -> Gradients:
    """One row per layer call, the mean loss, and what pulls at each parameter.

    The gradient is that of the mean loss over all batches, as in training.
    """
    parameters = {name: p for name, p in layout.model.named_parameters() if p.is_floating_point()}
    totals: dict[str, Tensor] = {}
    stream: dict[int, list[float]] = defaultdict(list)
    owner: dict[int, nn.Module] = {}
    losses: list[float] = []
    agreement = Agreement(parameters)

    def watch(record: Record) -> None:
        owner[record.index] = record.module
        if record.before.requires_grad:
            index = record.index
            record.before.register_hook(
                lambda gradient: None if gradient is None else stream[index].append(_length(gradient))
            )

    for batch in batches:
        with layout.tracer(watch), torch.enable_grad(), slow_path(), _thawed(parameters.values()):
            value = loss(layout.model, batch)
            if not value.requires_grad:
                raise UnsupportedError("the loss has no gradient with respect to any parameter")
            found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        losses.append(float(value.detach()))
        agreement.add(dict(zip(parameters, found, strict=True)), totals, loss.count(batch))
    if len(totals) < len(parameters) / 2:
        raise UnsupportedError(f"the backward pass reaches only {len(totals)} of {len(parameters)} parameters")
    count = max(len(losses), 1)
    totals = {name: gradient / count for name, gradient in totals.items()}
    rows = [_row(index, totals, layout.prefixes(owner[index]), stream[index]) for index in sorted(owner)]
    pulls = _pulls(layout, parameters, totals, agreement)
    return Gradients(rows, sum(losses) / count, pulls, agreement.noise())


class Agreement:
    """What the gradients of several batches have in common, from their running sum: none of them is kept."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.lengths = {name: float(p.detach().double().square().sum()) for name, p in parameters.items()}
        self.squares: dict[str, float] = defaultdict(float)  # sum over batches of |g|^2
        self.products: dict[str, float] = defaultdict(float)  # mean over batches of <g, mean of those before>
        self.shared: list[float] = []  # the latter of every batch, over all parameters
        self.targets: list[int] = []

    def add(self, found: Mapping[str, Tensor | None], totals: dict[str, Tensor], targets: int) -> None:
        """Take one batch's gradients, and add them to `totals`."""
        done, shared = len(self.targets), 0.0
        for name, gradient in found.items():
            if gradient is None:
                continue
            flat = gradient.flatten().float()
            self.squares[name] += float(flat @ flat)
            if name in totals:
                product = float(flat @ totals[name].flatten().float()) / done
                self.products[name] += product
                shared += product * self.lengths[name]
            totals[name] = totals[name] + gradient if name in totals else gradient
        self.targets.append(targets)
        if done:
            self.shared.append(shared)

    def size(self, name: str) -> float:
        return math.sqrt(self.lengths[name] * self.squares[name] / max(len(self.targets), 1))

    def steady(self, name: str) -> float:
        return math.sqrt(max(self.lengths[name] * self.products[name] / max(len(self.shared), 1), 0.0))

    def noise(self) -> NoiseReading | None:
        """None with fewer than four batches: an agreement of two says little; nor where gradients overflow."""
        count = len(self.targets)
        if count < 4 or not all(map(math.isfinite, self.shared)):
            return None
        total = sum(self.lengths[name] * square for name, square in self.squares.items()) / count
        signal = statistics.fmean(self.shared)
        error = t_reach(len(self.shared)) * standard_error(self.shared)

        def scale(common: float) -> float:
            return statistics.fmean(self.targets) * max(total - common, 0.0) / common if common > 0 else math.inf

        return NoiseReading(scale(signal), scale(signal - error), count)


def _pulls(
    layout: Layout, parameters: Mapping[str, Tensor], totals: Mapping[str, Tensor], agreement: Agreement
) -> tuple[PullRow, ...]:
    owners = layout.owners
    rows = []
    for name, gradient in totals.items():
        prefix = next((each for each in owners if name.startswith(each)), "")
        layer, own = owners.get(prefix, (-1, ""))
        value = float((parameters[name].detach().double() * gradient.double()).sum())
        size, steady = agreement.size(name), agreement.steady(name)
        rows.append(PullRow(layer, own + name.removeprefix(prefix), value, size, steady))
    return tuple(rows)


@contextmanager
def _thawed(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Frozen parameters take part for the time of the block: a gradient of zero because of a flag says nothing."""
    frozen = [p for p in parameters if not p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _row(
    index: int, totals: dict[str, Tensor], prefixes: dict[str, tuple[str, ...]], stream: list[float]
) -> GradientRow:
    mine = {name: gradient for name, gradient in totals.items() if name.startswith(prefixes["layer"])}

    def size(kind: str) -> float | None:
        names = prefixes.get(kind)
        return None if names is None else _norm(g for name, g in mine.items() if name.startswith(names))

    return GradientRow(
        index,
        gradient_norm=_norm(mine.values()),
        gradient_rms=_rms(mine.values()),
        attention_gradient=size("attention"),
        ffn_gradient=size("ffn"),
        stream_gradient=sum(stream) / len(stream) if stream else None,
    )


def _length(gradient: Tensor) -> float:
    return float(gradient.detach().float().norm(dim=-1).mean())


def _norm(gradients: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


def _rms(gradients: Iterable[Tensor]) -> float:
    gradients = list(gradients)
    size = sum(gradient.numel() for gradient in gradients)
    return _norm(gradients) / math.sqrt(size) if size else math.nan


def suspects(pulls: Iterable[PullRow], depth: int, *, most: int = 3) -> tuple[int, ...]:
    """The layers at which batches pull most alike, beside the layers around."""
    steady = [0.0] * depth
    for row in pulls:
        if 0 <= row.layer < depth:
            steady[row.layer] += (row.steady or 0.0) ** 2
    apart = []
    for layer, value in enumerate(steady):
        near = [steady[i] for i in range(max(0, layer - 2), min(depth, layer + 3)) if i != layer]
        apart.append((value / max(statistics.median(near), 1e-30) if near else 0.0, layer))
    return tuple(sorted(layer for _, layer in sorted(apart, reverse=True)[:most]))
