"""What memory a process reached, where the system says so. What autograd keeps is counted by `model.memory`."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import torch


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
