"""How long the residual stream is, how it grows, and how far a layer turns it. Tensors are [..., d]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normlab.stats import power_law, slope


def token_norms(x: Tensor) -> Tensor:
    """||x|| per token, [...], in float32 at least."""
    norms: Tensor = torch.linalg.vector_norm(_wide(x), dim=-1)
    return norms


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """cos(a, b) per token; 0 where either vector is zero."""
    a, b = _wide(a), _wide(b)
    scale = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return torch.where(scale > 0, (a * b).sum(-1) / scale.clamp_min(torch.finfo(a.dtype).tiny), torch.zeros_like(scale))


def block_influence(before: Tensor, after: Tensor) -> Tensor:
    """1 - E cos(h_l, h_{l+1}) (ShortGPT, Men et al. 2024): 0 when a layer only rescales."""
    return 1 - cosine(before, after).mean()


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    """arccos(cos(a, b)) / pi per token, in [0, 1] (Gromov et al. 2024).

    Written as 2 atan2(|u - v|, |u + v|) of the unit vectors: arccos loses half of the digits near 0, where layers live.
    """
    u = torch.nn.functional.normalize(_wide(a), dim=-1)
    v = torch.nn.functional.normalize(_wide(b), dim=-1)
    apart, together = torch.linalg.vector_norm(u - v, dim=-1), torch.linalg.vector_norm(u + v, dim=-1)
    return 2 * torch.atan2(apart, together) / math.pi


def growth_exponent(norms: Sequence[float]) -> float:
    """p of ||h_l|| ~ l^p over layers l = 1..L (the embedding is not a layer): 1/2 for pre-norm at random weights."""
    return power_law(range(1, len(norms) + 1), norms)


def exponential_rate(norms: Sequence[float]) -> float:
    """r of ||h_l|| ~ exp(r l): log of the factor per layer."""
    logs = [math.log(n) if n > 0 else math.nan for n in norms]
    return slope(list(range(len(norms))), logs)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
