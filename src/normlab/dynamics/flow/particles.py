"""The full system: every token its own direction in R^d, any weights, causal masks, several heads, an optional FFN.

Each branch f (attention, then FFN where there is one) pushes by its own rule, and pushes add:

    theta_j' = sum_f (1/s_f) (f_j - <theta_j, f_j> theta_j),      r_j' = sum_f r'_f.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normlab.dynamics.fields import Field
from normlab.dynamics.flow.batch import Rules
from normlab.dynamics.flow.solver import Rhs
from normlab.dynamics.flow.starts import unit
from normlab.dynamics.flow.weights import Draw, Weights, attend, feed_forward


class ParticleSystem:
    """State of a batch of B trajectories: theta (B, n, d) and r (B, n) in one vector; `seeds` draw their weights."""

    def __init__(
        self, fields: Sequence[Field], seeds: Sequence[int], n: int, beta: float, draw: Draw, *, causal: bool = False
    ) -> None:
        self.fields, self.seeds, self.n, self.beta, self.draw = list(fields), list(seeds), n, beta, draw
        self.mask = np.tril(np.ones((n, n), dtype=bool)) if causal else None
        self.cut = len(self.fields) * n * draw.d

    def pack(self, theta: np.ndarray, r: np.ndarray) -> np.ndarray:
        return np.concatenate([theta.ravel(), r.ravel()])

    def unpack(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        b = len(self.fields)
        return y[: self.cut].reshape(b, self.n, self.draw.d), y[self.cut :].reshape(b, self.n)

    def layer(self, left: float) -> list[Weights]:
        index = int(np.floor(left + 1e-12)) if self.draw.kind == "fresh" else 0
        drawn = {seed: self.draw.layer(seed, index) for seed in set(self.seeds)}
        return [drawn[seed] for seed in self.seeds]

    def rhs_from(self, left: float) -> Rhs:
        rules = Rules([f.stage(left) for f in self.fields])
        layer = self.layer(left)

        def rhs(t: float, y: np.ndarray) -> np.ndarray:
            theta, r = self.unpack(y)
            out = np.zeros_like(y)
            turn, growth = self.unpack(out)
            heat = rules.heat(t, self.beta)
            branches = [np.empty_like(theta)]
            for b, weights in enumerate(layer):
                radius = r[b] if rules.raw is not None and rules.raw[b] else None
                branches[0][b] = attend(theta[b], radius, weights, heat[b], self.mask)
            if self.draw.ffn:
                branches.append(np.stack([feed_forward(theta[b], w) for b, w in enumerate(layer)]))
            for branch in branches:
                along = np.einsum("bnd,bnd->bn", theta, branch)
                inverse, grown = rules(t, r, along, np.linalg.norm(branch, axis=-1))
                growth += grown
                branch -= along[..., None] * theta
                branch *= inverse[..., None]
                turn += branch
            return out

        return rhs

    def observe(
        self, t: float, y: np.ndarray, rate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Gap, mean radius, root mean square |theta'| and rate of the mean cosine of each member, from y and y'."""
        theta, r = self.unpack(y)
        moved = self.unpack(rate)[0]
        speed = np.sqrt(np.mean(np.sum(moved**2, -1), -1))
        climb = 2.0 * np.einsum("bd,bd->b", theta.sum(1), moved.sum(1)) / (self.n * (self.n - 1))
        return self.gap(y), r.mean(1), speed, climb

    def gap(self, y: np.ndarray) -> np.ndarray:
        """1 - mean pairwise cosine of each member, from the spread around the mean: no cancellation near consensus."""
        theta = unit(self.unpack(y)[0])
        spread = theta - theta.mean(1, keepdims=True)
        result: np.ndarray = np.einsum("bnd,bnd->b", spread, spread) / (self.n - 1)
        return result

    def settle(self, y: np.ndarray) -> np.ndarray:
        theta, r = self.unpack(y)
        return self.pack(unit(theta), r)
