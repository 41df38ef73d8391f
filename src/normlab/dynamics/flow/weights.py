"""What stands for the weights: identity, one random draw held over depth, or a fresh draw for every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normlab.errors import ConfigError, unknown

KINDS = ("identity", "random", "fresh")


@dataclass(frozen=True)
class Weights:
    """One layer: logits beta <Q_h theta_j, K_h theta_k>; output sum_h of P_h theta V_h^T; then an FFN, if any.

    logits  (H, d, d): Q_h^T K_h;  values (H, d, d): O_h V_h;  up (m, d), down (d, m). None is the identity.
    """

    logits: np.ndarray | None = None
    values: np.ndarray | None = None
    up: np.ndarray | None = None
    down: np.ndarray | None = None


@dataclass(frozen=True)
class Draw:
    """How layers are drawn. Gaussian entries of variance 1/d, so that a unit vector stays about unit.

    Several heads split d as a Transformer does: Q_h, K_h, V_h are (d/H, d), and an output matrix joins the heads.
    One head has no output matrix, as in the paper. The FFN is ReLU, four times as wide, of output norm about 1.
    """

    kind: str
    d: int
    heads: int = 1
    ffn: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(unknown("kind of weights", self.kind, KINDS))
        if self.heads < 1 or self.d % self.heads:
            raise ConfigError(f"{self.heads} heads do not divide d = {self.d}")
        if self.heads > 1 and self.kind == "identity":
            raise ConfigError("several heads with identity weights are one head; use weights='random' or 'fresh'")

    def layer(self, seed: int, index: int) -> Weights:
        """Layer `index` of a seed; the same one at every index where weights are held over depth."""
        rng = np.random.default_rng([seed, 7, index if self.kind == "fresh" else 0])
        logits = values = None
        if self.kind != "identity":
            logits, values = self._attention(rng)
        if not self.ffn:
            return Weights(logits, values)
        wide = 4 * self.d
        up = rng.normal(0.0, np.sqrt(2.0 / self.d), (wide, self.d))
        down = rng.normal(0.0, np.sqrt(1.0 / wide), (self.d, wide))
        # |up theta|^2 = 2 wide/d, ReLU keeps half of it, down multiplies by d/wide: a unit output on average.
        return Weights(logits, values, up, down)

    def _attention(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        h, d = self.heads, self.d
        q, k, v = (rng.normal(0.0, d**-0.5, (h, d // h, d)) for _ in range(3))
        logits = q.transpose(0, 2, 1) @ k
        if h == 1:
            return logits, v
        out = rng.normal(0.0, d**-0.5, (h, d, d // h))
        return logits, out @ v


def attend(
    theta: np.ndarray, radius: np.ndarray | None, weights: Weights, beta: float, mask: np.ndarray | None
) -> np.ndarray:
    """A of every token (n, d); `radius` is given where values are raw tokens r_k theta_k."""
    if weights.logits is None:
        result: np.ndarray = _probabilities(beta * (theta @ theta.T), radius, mask) @ theta
        return result
    total = np.zeros_like(theta)
    for score, value in zip(weights.logits, weights.values, strict=True):  # type: ignore[arg-type]
        p = _probabilities(beta * ((theta @ score) @ theta.T), radius, mask)
        total += (p @ theta) @ value.T
    return total


def _probabilities(logits: np.ndarray, radius: np.ndarray | None, mask: np.ndarray | None) -> np.ndarray:
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(-1, keepdims=True)
    if radius is not None:
        p *= radius
    result: np.ndarray = p
    return result


def feed_forward(theta: np.ndarray, weights: Weights) -> np.ndarray:
    assert weights.up is not None
    assert weights.down is not None
    result: np.ndarray = np.maximum(theta @ weights.up.T, 0.0) @ weights.down.T
    return result
