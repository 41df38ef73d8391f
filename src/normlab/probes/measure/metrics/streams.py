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


def mixing_gain(mixing: Tensor) -> Tensor:
    """Largest absolute row or column sum of an n x n mixing (mHC's Amax), mean over tokens: forward or backward gain.

    1 for a doubly stochastic matrix. mixing is [..., n, n].
    """
    size = mixing.abs()
    return torch.maximum(size.sum(-1).amax(-1), size.sum(-2).amax(-1)).mean()


def composite_gain(mixings: list[Tensor]) -> float:
    """`mixing_gain` of the product H_L ... H_2 H_1 of every token; 1 if each is doubly stochastic."""
    product = mixings[0].double()
    for mixing in mixings[1:]:
        product = mixing.double() @ product
    return float(mixing_gain(product))


def effective_streams(streams: Tensor) -> Tensor:
    """exp(entropy of the squared singular values of the n streams of a token), mean: n if they differ, 1 if they are one."""
    gram = torch.nan_to_num(streams.float() @ streams.float().transpose(-1, -2))
    power = torch.linalg.eigvalsh(gram).clamp_min(0.0)
    share = power / power.sum(-1, keepdim=True).clamp_min(1e-30)
    found: Tensor = torch.special.entr(share).sum(-1).exp().mean()
    return found


def smallest_stream(streams: Tensor) -> Tensor:
    """Size of the smallest stream beside the mean of all: 0 if one is dead."""
    sizes = torch.linalg.vector_norm(streams.float(), dim=-1).flatten(0, -2).mean(0)
    found: Tensor = sizes.min() / sizes.mean().clamp_min(1e-30)
    return found


def mixing_error(mixing: Tensor) -> Tensor:
    """How far rows and columns are from summing to 1, at most, mean over tokens: 0 if doubly stochastic."""
    return torch.maximum((mixing.sum(-1) - 1).abs().amax(-1), (mixing.sum(-2) - 1).abs().amax(-1)).mean()


def mixing_keeps(mixing: Tensor) -> Tensor:
    """Second singular value, mean over tokens: how much of the streams' difference one mixing leaves. 0 averages them."""
    found: Tensor = torch.linalg.svdvals(torch.nan_to_num(mixing.float()))[..., 1].mean()
    return found


def largest_share(weights: Tensor) -> Tensor:
    """The largest weight of a read of n streams beside all of them, mean over tokens: 1 if it reads one."""
    size = weights.float().abs()
    return (size.amax(-1) / size.sum(-1).clamp_min(1e-30)).mean()


def effective_sources(weights: Tensor) -> Tensor:
    """exp(entropy of |M[l]| / its sum): how many sources a row of the depth-mixing matrix really uses. [..., sources]"""
    size = weights.double().abs()
    share = size / size.sum(-1, keepdim=True).clamp_min(1e-300)
    used: Tensor = torch.special.entr(share).sum(-1).exp()
    return used
