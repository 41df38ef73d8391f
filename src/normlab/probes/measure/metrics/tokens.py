"""Are the tokens of a sequence still different from each other? Tensors are [..., n, d]: n tokens of one sequence."""

from __future__ import annotations

import torch
from torch import Tensor


def token_cosine(x: Tensor) -> Tensor:
    """Mean cosine over pairs of different tokens, (||sum theta||^2 - n) / (n (n - 1)), per sequence."""
    n = x.shape[-2]
    return (_mean_direction(x).square().sum(-1) * n - 1) / max(n - 1, 1)


def token_variance(x: Tensor) -> Tensor:
    """Var = 1 - ||mean theta||^2 = (n - 1)/n (1 - token cosine), per sequence."""
    return 1 - _mean_direction(x).square().sum(-1)


def effective_rank(x: Tensor, *, center: bool = False) -> Tensor:
    """exp(entropy of the singular values / their sum) (Roy and Vetterli 2007), in [1, min(n, d)], per sequence.

    Singular values come from the smaller Gram matrix in float64: squaring halves the digits, and 8 remain.
    """
    x = x.double()
    if center:
        x = x - x.mean(-2, keepdim=True)
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    values = torch.linalg.eigvalsh(gram).clamp_min(0)
    noise = values.amax(-1, keepdim=True) * 1e-14  # eigenvalues below are rounding, and their roots are not small
    values = torch.where(values > noise, values, torch.zeros_like(values)).sqrt()
    weights = values / values.sum(-1, keepdim=True).clamp_min(1e-300)
    rank: Tensor = torch.special.entr(weights).sum(-1).exp()
    return rank


def _mean_direction(x: Tensor) -> Tensor:
    theta = torch.nn.functional.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1)
    return theta.mean(-2)
