"""Is the gradient the derivative of the loss? The stream in front of a layer is moved a little, and the loss is asked.

A detach that was left in, or a kernel with a wrong backward pass, changes no prediction: only what the next step learns.
The gradient in front of a layer has passed all layers from there on, so the first layer is asked first; where it is
wrong, halving finds the last layer whose gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.probes.inputs.losses import Loss
from normlab.probes.measure.skips import Skipper, skipper_of
from normlab.probes.measure.table import Real, Sparse
from normlab.probes.trace.hooks import Layout, slow_path

DIRECTIONS = 4
STEP = 0.02  # of a token's length
WRONG = 0.05  # of the derivative; trained healthy models: 0.02 at most where two lengths of step agree


@dataclass(frozen=True)
class DerivativeRow(Sparse):
    """The stream in front of one layer; lengths over several random directions, in nats per step."""

    layer: int
    measured: Real  # how the loss changes
    apart: Real  # ||what the gradient says - how the loss changes|| / ||how the loss changes||
    unsure: Real  # by how much two lengths of step disagree, in the same unit: tokens change experts, or rounding

    @property
    def limit(self) -> float:
        return WRONG + 4 * self.unsure

    @property
    def wrong(self) -> bool:
        return self.apart > self.limit


def read_derivatives(layout: Layout, batch: object, loss: Loss) -> tuple[DerivativeRow, ...]:
    """The layers that were asked, in order. Of a model whose gradient is right that is the first one alone."""
    skipper = skipper_of(layout, batch, loss)
    if not isinstance(skipper, Skipper) or loss.name == "contrastive":  # a scheme's stream may be more than a tensor
        return ()
    try:
        return _asked(skipper)
    except Exception:  # quantised weights have no gradient, and a layer may refuse a moved stream: nothing is said
        return ()


def _asked(skipper: Skipper) -> tuple[DerivativeRow, ...]:
    streams, gradients = _backward(skipper)
    if not streams:
        return ()
    rows: dict[int, DerivativeRow] = {}

    def ask(layer: int) -> bool:
        rows[layer] = _row(skipper, layer, streams[layer], gradients[layer])
        return rows[layer].wrong

    if ask(0):
        low, high = 0, len(streams)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ask(middle) else (low, middle)
    return tuple(rows[layer] for layer in sorted(rows))


def _backward(skipper: Skipper) -> tuple[list[Tensor], list[Tensor]]:
    """The stream in front of each layer of the first pass, and the gradient there (zero where none arrives)."""
    streams: list[Tensor] = []

    def behave(index: int, compute: Callable[[Tensor], object], x: Tensor) -> object:
        if not x.requires_grad:
            x = x.detach().requires_grad_(True)
        streams.append(x)
        return compute(x)

    with skipper.patched(behave), slow_path(), torch.enable_grad():
        value = skipper.loss(skipper.layout.model, skipper.batch)
        if not value.requires_grad or skipper.passes > 0:
            return [], []
        found = torch.autograd.grad(value, streams, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(streams, found, strict=True)]
    return [x.detach() for x in streams], grads


def _row(skipper: Skipper, layer: int, stream: Tensor, gradient: Tensor) -> DerivativeRow:
    dice = torch.Generator().manual_seed(layer)
    said, whole, half = [], [], []
    for _ in range(DIRECTIONS):
        noise = torch.randn(stream.shape, generator=dice).to(stream)
        step = STEP * noise * stream.float().square().mean(-1, keepdim=True).sqrt().to(stream)
        said.append(float((gradient.double() * step.double()).sum()))
        whole.append(_change(skipper, layer, step))
        half.append(2 * _change(skipper, layer, step / 2))
    # Richardson: two lengths of step cancel the third order.
    best = [(4 * h - w) / 3 for w, h in zip(whole, half, strict=True)]
    size = max(math.hypot(*best), 1e-30)
    apart = math.hypot(*(s - b for s, b in zip(said, best, strict=True))) / size
    unsure = math.hypot(*(w - h for w, h in zip(whole, half, strict=True))) / size
    return DerivativeRow(layer, size, apart, unsure)


def _change(skipper: Skipper, layer: int, step: Tensor) -> float:
    """(loss with the step - loss against it) / 2."""

    def moved(sign: int) -> float:
        value = skipper.run(lambda index, compute, x: compute(x + sign * step) if index == layer else compute(x))
        assert value is not None
        return value

    return (moved(1) - moved(-1)) / 2
