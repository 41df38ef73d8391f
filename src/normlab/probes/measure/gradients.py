"""Gradients of a real loss, per layer and per branch, before any clipping."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.table import GradientRow, Real
from normlab.probes.trace.hooks import Layout, Record, slow_path


@dataclass(frozen=True)
class PullRow:
    """d loss / d log scale of one parameter, <w, dL/dw>: training leaves none. `layer` is -1 outside of the layers.

    Positive: the loss falls if the parameter shrinks.
    """

    layer: int
    name: str
    pull: Real


@dataclass(frozen=True)
class Gradients:
    rows: list[GradientRow]
    loss: float
    pulls: tuple[PullRow, ...]


def measure(layout: Layout, batches: Iterable[object], loss: Loss) -> Gradients:
    """One row per layer call, the mean loss, and what pulls at each parameter.

    The gradient is that of the mean loss over all batches, as in training.
    """
    parameters = {name: p for name, p in layout.model.named_parameters() if p.is_floating_point()}
    totals: dict[str, Tensor] = {}
    stream: dict[int, list[float]] = defaultdict(list)
    owner: dict[int, nn.Module] = {}
    losses: list[float] = []

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
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                totals[name] = totals[name] + gradient if name in totals else gradient
    if len(totals) < len(parameters) / 2:
        raise UnsupportedError(f"the backward pass reaches only {len(totals)} of {len(parameters)} parameters")
    count = max(len(losses), 1)
    totals = {name: gradient / count for name, gradient in totals.items()}
    rows = [_row(index, totals, layout.prefixes(owner[index]), stream[index]) for index in sorted(owner)]
    return Gradients(rows, sum(losses) / count, _pulls(layout, parameters, totals))


def _pulls(layout: Layout, parameters: Mapping[str, Tensor], totals: Mapping[str, Tensor]) -> tuple[PullRow, ...]:
    places = {prefix: i for i, (_, layer) in enumerate(layout.layers) for prefix in layout.prefixes(layer)["layer"]}
    rows = []
    for name, gradient in totals.items():
        prefix = next((each for each in places if name.startswith(each)), "")
        value = float((parameters[name].detach().double() * gradient.double()).sum())
        rows.append(PullRow(places.get(prefix, -1), name.removeprefix(prefix), value))
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
