"""Gradients of a real loss, per layer and per branch, before any clipping."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.table import GradientRow
from normlab.probes.trace.hooks import Layout, Record, slow_path


def measure(layout: Layout, batches: Iterable[Any], loss: Loss) -> tuple[list[GradientRow], float]:
    """(one row per layer call, mean loss). The gradient is that of the mean loss over all batches, as in training."""
    parameters = {name: p for name, p in layout.model.named_parameters() if p.requires_grad}
    totals: dict[str, Tensor] = {}
    stream: dict[int, list[float]] = defaultdict(list)
    owner: dict[int, nn.Module] = {}
    losses: list[float] = []

    def watch(record: Record) -> None:
        owner[record.index] = record.module
        if record.before.requires_grad:
            index = record.index
            record.before.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: stream[index].append(float(gradient.detach().float().norm(dim=-1).mean()))
            )

    for batch in batches:
        with layout.tracer(watch), torch.enable_grad(), slow_path():
            value = loss(layout.model, batch)
            found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        losses.append(float(value.detach()))
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                totals[name] = totals[name] + gradient if name in totals else gradient
    count = max(len(losses), 1)
    totals = {name: gradient / count for name, gradient in totals.items()}
    rows = [_row(index, totals, layout.prefixes(owner[index]), stream[index]) for index in sorted(owner)]
    return rows, sum(losses) / count


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


def _norm(gradients: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


def _rms(gradients: Iterable[Tensor]) -> float:
    gradients = list(gradients)
    size = sum(gradient.numel() for gradient in gradients)
    return _norm(gradients) / math.sqrt(size) if size else math.nan
