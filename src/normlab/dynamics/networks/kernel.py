"""The layers in the limit of large width, with fresh random weights: the Gram matrix moves by itself, whatever d is.

For independent random matrices the inner products of what a branch adds are deterministic (d -> inf), and orthogonal
to the stream, so with K_jk = <x_j, x_k>, G its cosines, P the attention and kappa the kernel of the FFN's activation

    attention adds  size^2 P G P^T / mean diag,       an FFN adds  size^2 kappa(G),
    K <- K + added                (stream "free"),     K <- cosines of (K + added)     (stream "unit"),

with a constant diagonal for a normalised branch, and P G P^T averaged over heads with random logits. It is the
discrete dynamics with "fresh" weights made exact, and covers what the paper leaves for later: causal masks, several
heads, FFNs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from normlab.dynamics.fields import Stage
from normlab.errors import ConfigError, unknown

Kernel = Callable[[np.ndarray], np.ndarray]
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "geglu", "swiglu")


@dataclass(frozen=True)
class Push:
    """What one branch adds.

    size    root mean square norm of what joins the stream, in the stream's unit
    keep    the weight of the stream beside it (DeepNorm's alpha; nGPT: 1 - alpha)
    radius  the norm that the stream is put back to, where stage.stream is "unit"
    spread  standard deviation of the attention logits
    """

    kind: Literal["attention", "ffn"]
    stage: Stage
    size: float
    keep: float = 1.0
    radius: float = 1.0
    spread: float = 0.0


def propagate(
    gram: np.ndarray, pushes: Sequence[Push], *, mask: np.ndarray | None, kappa: Kernel, seed: int = 0
) -> list[np.ndarray]:
    """K at every read and at the end (len(pushes) + 1 matrices), from the inner products K_0 of the input."""
    rng = np.random.default_rng(seed)
    states = [gram]
    for push in pushes:
        k = states[-1]
        g = cosines(k)
        added = kappa(g) if push.kind == "ffn" else attended(g, k if push.stage.values == "raw" else g, push, mask, rng)
        if push.stage.branch == "unit":
            added = cosines(added)
        k = push.keep**2 * k + added * (push.size**2 / np.diag(added).mean())
        states.append(push.radius**2 * cosines(k) if push.stage.stream == "unit" else k)
    return states


def attended(
    g: np.ndarray, values: np.ndarray, push: Push, mask: np.ndarray | None, rng: np.random.Generator, *, heads: int = 24
) -> np.ndarray:
    """E[P values P^T] over random queries and keys, whose logits are Gaussian with covariance spread^2 G_jj' G_kk'.

    An average over sampled heads; exact and without sampling where the logits are all but zero (uniform attention).
    """
    n = len(g)
    allowed = np.ones((n, n)) if mask is None else mask
    if push.spread < 1e-3:
        p = allowed / allowed.sum(-1, keepdims=True)
        result: np.ndarray = p @ values @ p.T
        return result
    eigenvalues, vectors = np.linalg.eigh(g)
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
    total = np.zeros_like(g)
    for _ in range(heads):
        logits = push.spread * root @ rng.standard_normal((n, n)) @ root.T
        logits = np.where(allowed > 0, logits, -np.inf)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        total += p @ values @ p.T / heads
    return total


def cosines(k: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.diag(k))
    g = np.clip(k / np.outer(size, size), -1.0, 1.0)
    np.fill_diagonal(g, 1.0)
    result: np.ndarray = g
    return result


def mean_cosine(k: np.ndarray) -> float:
    n = len(k)
    return float((cosines(k).sum() - n) / (n * (n - 1)))


@lru_cache(maxsize=64)
def kernel(activation: str, std: float) -> Kernel:
    """kappa(g) = E phi(u) phi(v) / E phi(u)^2 for Gaussian u, v of this deviation and correlation g.

    ReLU is the arc-cosine kernel of degree 1 (Cho and Saul 2009), in closed form and for every deviation; others are
    integrated by Gauss-Hermite quadrature. A gated unit phi(u) w has an independent linear factor, and so g kappa(g).
    """
    if activation == "relu":
        return lambda g: (np.sqrt(np.maximum(1 - g * g, 0)) + g * (np.pi - np.arccos(np.clip(g, -1, 1)))) / np.pi
    if activation not in ACTIVATIONS:
        raise ConfigError(unknown("activation", activation, ACTIVATIONS))
    gated = activation in ("swiglu", "geglu")
    phi = _silu if activation == "swiglu" else _gelu
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    weights = weights / weights.sum()
    grid = np.linspace(-1.0, 1.0, 401)
    first = phi(std * nodes)
    second = phi(std * (grid[:, None, None] * nodes[:, None] + np.sqrt(1 - grid**2)[:, None, None] * nodes[None, :]))
    table = np.einsum("i,i,j,gij->g", weights, first, weights, second)
    table = table / table[-1]

    def interpolated(g: np.ndarray) -> np.ndarray:
        value = np.interp(g, grid, table)
        result: np.ndarray = g * value if gated else value
        return result

    return interpolated


def _silu(u: np.ndarray) -> np.ndarray:
    result: np.ndarray = u / (1.0 + np.exp(-np.clip(u, -700, 700)))
    return result


def _gelu(u: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    result: np.ndarray = u * ndtr(u)
    return result
