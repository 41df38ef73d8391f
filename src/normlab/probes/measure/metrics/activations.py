"""A few coordinates that are thousands of times larger than the rest (massive activations, Sun et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

ABSOLUTE, RELATIVE = 100.0, 1000.0  # Sun et al. 2024: |x| > 100 and > 1000 x the median magnitude


def median_magnitude(x: Tensor, *, sample: int = 1 << 13) -> float:
    """Median of |x|; from an evenly spaced sample when x is large, because a median is a sort."""
    flat = x.detach().flatten()
    if flat.numel() > sample:
        # An odd stride visits every coordinate: one that divides d would look at a single column.
        flat = flat[:: (flat.numel() // sample) | 1]
    return float(flat.float().abs().median())


def top_magnitude(x: Tensor) -> tuple[float, int, int]:
    """(largest |x|, its token position, its coordinate) of x [batch, tokens, d]."""
    peaks = x.detach().abs().amax(-1)  # an argmax over everything at once is several times slower
    token = int(peaks.argmax())
    row = x.detach().reshape(-1, x.shape[-1])[token]
    return float(peaks.flatten()[token]), token % x.shape[-2], int(row.abs().argmax())


def nonfinite(x: Tensor) -> int:
    """How many entries are nan or infinite."""
    return int((~torch.isfinite(x)).sum())
