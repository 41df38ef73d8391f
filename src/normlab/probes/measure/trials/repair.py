"""A few steps of training on half of the text: a trained model gains next to nothing by them, a damaged one much.

The weights are put back exactly.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import HiddenAnew, Loss
from normlab.probes.measure.table import Real, Sparse
from normlab.probes.trace.hooks import Layout, slow_path

STEPS, RATE = 6, 3e-4


@dataclass(frozen=True)
class RepairReading(Sparse):
    """What `STEPS` steps of Adam on half of the windows gain on the other half, in nats."""

    gain: Real
    pieces: int  # of the other half
    better: int  # those whose loss falls


def read_repair(layout: Layout, pieces: Sequence[object], loss: Loss) -> RepairReading | None:
    """None where there are too few windows, or no gradients."""
    learnt, judged = _halves(pieces)
    if len(learnt) < 2 or len(judged) < 2:
        return None
    own = list(layout.model.parameters())
    moving = [p for p in own if p.requires_grad] or [p for p in own if p.is_floating_point()]
    try:
        changes = _gains(layout, moving, (learnt, judged), loss)
    except RuntimeError:
        return None
    return RepairReading(statistics.fmean(changes), len(judged), sum(change > 0 for change in changes))


def _halves(pieces: Sequence[object]) -> tuple[list[object], list[object]]:
    """Windows to learn from and windows to judge by; one that is asked for several times stays on its side."""
    seen: dict[int, int] = {}
    sides: tuple[list[object], list[object]] = ([], [])
    for piece in pieces:
        window = id(piece.batch) if isinstance(piece, HiddenAnew) else id(piece)
        known = seen.setdefault(window, len(seen))
        sides[known % 2].append(piece)
    return sides


def _gains(
    layout: Layout, moving: list[nn.Parameter], halves: tuple[list[object], list[object]], loss: Loss
) -> list[float]:
    """How far the loss of each piece of the second half falls."""
    learnt, judged = halves
    first = [torch.zeros_like(p) for p in moving]
    second = [torch.zeros_like(p) for p in moving]
    with _kept(moving), slow_path():
        before = _losses(layout, judged, loss)
        for step in range(1, STEPS + 1):
            gradients = _gradients(layout, moving, learnt, loss)
            for p, g, m, v in zip(moving, gradients, first, second, strict=True):
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.95).addcmul_(g, g, value=0.05)
                p.data.sub_(RATE * m / (1 - 0.9**step) / ((v / (1 - 0.95**step)).sqrt() + 1e-8))
        after = _losses(layout, judged, loss)
    return [old - new for old, new in zip(before, after, strict=True)]


@torch.no_grad()
def _losses(layout: Layout, pieces: list[object], loss: Loss) -> list[float]:
    return [float(loss(layout.model, piece)) for piece in pieces]


def _gradients(layout: Layout, moving: list[nn.Parameter], pieces: list[object], loss: Loss) -> list[Tensor]:
    sums = [torch.zeros_like(p) for p in moving]
    with torch.enable_grad():
        for piece in pieces:
            found = torch.autograd.grad(loss(layout.model, piece), moving, allow_unused=True)
            for total, part in zip(sums, found, strict=True):
                if part is not None:
                    total.add_(part, alpha=1 / len(pieces))
    return sums


@contextmanager
def _kept(moving: list[nn.Parameter]) -> Iterator[None]:
    """The parameters may move, and are put back: their numbers and their flags."""
    numbers, flags = [p.detach().clone() for p in moving], [p.requires_grad for p in moving]
    for p in moving:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p, old, flag in zip(moving, numbers, flags, strict=True):
            p.data.copy_(old)
            p.requires_grad_(flag)
