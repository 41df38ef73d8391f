"""Half precision: its own rounding is measured once, then the same weights in float32, whose digits can be judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import call
from normlab.probes.trace.tensors import tensors

HALF = (torch.bfloat16, torch.float16)
LARGEST = 2_000_000_000  # parameters: a larger model is measured as it is, because float32 needs twice the memory


def half_of(model: nn.Module) -> torch.dtype | None:
    """The half precision that all floating parameters are in, if they are."""
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    only = kinds.pop() if len(kinds) == 1 else None
    return only if only in HALF else None


def widens(model: nn.Module, batch: object) -> bool:
    """Can it be judged in float32? Not where its own precision overflows: that is a finding about the model as it runs."""
    if half_of(model) is None or sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
        return False
    with torch.no_grad():
        said = [each for each in tensors(call(model, batch)) if each.is_floating_point()]
    return all(bool(torch.isfinite(each).all()) for each in said)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """The same numbers in float32 for the time of the block. Half precision is a part of it, so the way back is exact."""
    kept = [(item, item.dtype) for item in [*model.parameters(), *model.buffers()] if item.dtype in HALF]
    try:
        for item, _ in kept:
            item.data = item.data.float()
        yield
    finally:
        for item, kind in kept:
            item.data = item.data.to(kind)


def widened(batch: object) -> object:
    """A batch whose numbers are float32 too: images, or states of an encoder."""
    if isinstance(batch, Tensor):
        return batch.float() if batch.dtype in HALF else batch
    if isinstance(batch, Mapping):
        return {key: widened(value) for key, value in batch.items()}
    return tuple(map(widened, batch)) if isinstance(batch, (tuple, list)) else batch


def count_parameters(model: nn.Module) -> int:
    """With weights that a quantised module keeps packed, which torch does not call parameters."""
    count = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        unpack = getattr(module, "_weight_bias", None)
        if ".quantized." in type(module).__module__ and callable(unpack) and not list(module.children()):
            count += sum(part.numel() for part in unpack() if part is not None)
    return count
