"""The rules of several rows at once, as arrays: what lets schemes and seeds share one integration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normlab.dynamics.fields import Custom, Stage, inverse_temperature


class Rules:
    """1/s and r' of a batch of stages. A `Custom` stage is alone in its batch, since its rule is a function."""

    def __init__(self, stages: Sequence[Stage | Custom]) -> None:
        self.stages = list(stages)
        self.custom = stages[0] if isinstance(stages[0], Custom) else None
        raw = np.array([stage.values == "raw" for stage in stages])
        self.raw = raw if raw.any() else None
        rows = [stage for stage in stages if isinstance(stage, Stage)]
        self.free = np.array([row.stream == "free" for row in rows])[:, None]
        self.unit = np.array([row.branch == "unit" for row in rows])[:, None]
        self.gains = [row.gain for row in rows]
        self.needs_size = self.custom is not None or bool(self.unit.any())  # whether |A| is asked for at all

    def heat(self, t: float, beta: float) -> np.ndarray:
        """The inverse temperature of each member."""
        return np.array([inverse_temperature(stage, t, beta) for stage in self.stages])

    def __call__(self, t: float, r: np.ndarray, along: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """1/s and r', both (B, n)."""
        if self.custom is not None:
            s = np.broadcast_to(self.custom.s(t, r, along, size), r.shape)
            return 1.0 / s, np.broadcast_to(self.custom.dr(t, r, along, size), r.shape)
        gain = np.array([gain(t) for gain in self.gains])[:, None]
        scale = gain / np.where(self.unit, size, 1.0)
        return scale / np.where(self.free, r, 1.0), np.where(self.free, scale * along, 0.0)


def pairwise(theta: np.ndarray) -> np.ndarray:
    """E_jk = 1 - <theta_j, theta_k> = |theta_j - theta_k|^2 / 2 of unit vectors, accurate for close ones too."""
    gaps = 1.0 - theta @ theta.T
    np.fill_diagonal(gaps, 1.0)
    for j in np.nonzero((gaps < 1e-3).any(1))[0]:
        gaps[j] = 0.5 * np.sum((theta - theta[j]) ** 2, axis=1)
    np.fill_diagonal(gaps, 0.0)
    result: np.ndarray = gaps
    return result
