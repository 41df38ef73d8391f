"""How much memory a training step needs: what autograd keeps (exact), and what the process reached (where known)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def saved_bytes(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Bytes that one forward pass keeps for the backward pass, parameters not counted, shared storage once."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # storages must not be freed and reused while they are counted

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def reset_peak(device: torch.device) -> None:
    """Start counting afresh: a worker process runs many cells."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc: what an earlier cell freed goes back to the system
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # not Linux, or not allowed: `peak` then covers the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak(device: torch.device) -> int | None:
    """The largest resident size since `reset_peak` (CUDA: of the allocator), or None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
