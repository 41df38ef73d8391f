"""Tensors inside the arguments and results of calls, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from normlab.errors import UnsupportedError


def mismatch(measured: Tensor, expected: Tensor, change: Tensor) -> float:
    """||measured - expected|| in units of the change that is to be explained (at least a thousandth of the stream).

    In units of the stream, a wrong branch that adds little would pass.
    """
    kind = torch.float64 if measured.dtype == torch.float64 else torch.float32
    measured, expected, change = (each.detach().to(kind) for each in (measured, expected, change))
    if measured.numel() != expected.numel():
        return float("inf")
    scale = torch.maximum(change.norm(), 1e-3 * expected.norm())
    error = float((measured.reshape(expected.shape) - expected).norm() / scale.clamp_min(1e-30))
    return error if error == error else 0.0  # NaN weights are a verdict, not a wrong layout


def first_tensor(value: object) -> Tensor:
    """The first floating tensor in a call's arguments or result: for a layer, its hidden states."""
    found = maybe_tensor(value)
    if found is None:
        raise UnsupportedError("a hooked module was called without, or returned, no floating-point tensor")
    return found


def maybe_tensor(value: object) -> Tensor | None:
    """The first floating tensor, or None where a module neither takes nor returns one."""
    return next((item for item in tensors(value) if item.is_floating_point()), None)


def find_weights(value: object) -> Tensor | None:
    """Attention weights in a module's output: [batch, heads, queries, keys] whose rows sum to one.

    The sum matters: T5's attention also returns its position bias, of the same shape.
    """
    for item in tensors(value):
        if item.dim() == 4 and item.is_floating_point():
            rows = item[0, 0].detach().float().sum(-1)
            if bool(((rows - 1).abs() < 1e-2).all() | rows.isnan().any()):
                return item.detach()
    return None


def tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):  # outputs of Hugging Face models are mappings and no dicts
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
