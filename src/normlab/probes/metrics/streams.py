"""Several residual streams: do they stay different, and does their mixing stay bounded?"""

from __future__ import annotations

import torch
from torch import Tensor


def homogenisation(streams: Tensor) -> Tensor:
    """Mean cosine between different streams of the same token; streams is [..., n, d] with n streams.

    1 means that the n streams carry one: the width is paid for and not used.
    """
    theta = torch.nn.functional.normalize(streams.float(), dim=-1)
    n = theta.shape[-2]
    return ((theta.sum(-2).square().sum(-1) - n) / max(n * (n - 1), 1)).mean()


def composite_gain(mixings: list[Tensor]) -> float:
    """Largest absolute row or column sum of the product H_L ... H_2 H_1 (mHC); 1 if each is doubly stochastic."""
    product = torch.eye(mixings[0].shape[-1], dtype=torch.float64)
    for mixing in mixings:
        product = mixing.double() @ product
    size = product.abs()
    return float(torch.maximum(size.sum(-1).amax(), size.sum(-2).amax()))
