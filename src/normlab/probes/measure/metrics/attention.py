"""What the attention weights do. Weights are [batch, heads, queries, keys] with rows that sum to one."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_keys(weights: Tensor) -> Tensor:
    """How many keys each query may see, [queries]: those with a positive weight in any head of any sequence.

    Read from the weights, so that causal masks and sliding windows need no knowledge of the model; one head alone
    would under-count, because softmax underflows to an exact zero.
    """
    return (weights.flatten(0, -3).amax(0) > 0).sum(-1)


def normalised_entropy(weights: Tensor, visible: Tensor | None = None) -> Tensor:
    """Entropy / log(visible keys), mean over queries that see at least two keys, per [batch, head]: 1 is uniform.

    Of more than 256 queries every second, fourth, ... enters, the last one always: logarithms of n^2 weights are what
    costs most here.
    """
    seen = visible_keys(weights) if visible is None else visible
    if (step := weights.shape[-2] // 256) > 1:
        some = torch.arange(weights.shape[-2] - 1, -1, -step, device=weights.device)
        weights, seen = weights[..., some, :], seen[some]
    entropy: Tensor = torch.special.entr(weights.float()).sum(-1)
    able = seen >= 2
    if not bool(able.any()):
        return torch.full(entropy.shape[:-1], float("nan"))
    return (entropy[..., able] / seen[able].float().log()).mean(-1)


def max_weight(weights: Tensor) -> Tensor:
    """The largest weight of a row, mean over the last half of the queries, per [batch, head]."""
    half = weights.shape[-2] // 2
    return weights[..., half:, :].float().amax(-1).mean(-1)


def sink(weights: Tensor) -> tuple[Tensor, Tensor]:
    """(mass, position) of the key that the last half of the queries attend to most on average, per [batch, head].

    Only keys of the first half are candidates when the weights are causal: there every one of those queries sees
    them. Uniform attention over n keys gives 1/n (bidirectional) or about 2 ln 2 / n (causal).
    """
    n = weights.shape[-2]
    rows = weights[..., n // 2 :, :].float().mean(-2)
    causal = weights.shape[-1] == n and not bool((weights[..., : n // 2, n // 2 :] > 0).any())
    mass, position = (rows[..., : max(n // 2, 1)] if causal else rows).max(-1)
    return mass, position
