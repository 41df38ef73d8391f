"""Q = K = V = I: the system closes on the n x n pairwise gaps E_jk = 1 - <theta_j, theta_k>, so d never enters.

With W = exp(-beta E) (the softmax needs no maximum: E_jj = 0 is the smallest), P its rows made to sum to 1:

    <theta_j, A_j> = 1 - (P E)_jj,        |A_j|^2 = 1 - (P E P^T)_jj,
    M_jk = (1/s_j) ( E_jk - (P E)_jk + (P E)_jj (1 - E_jk) ),        E' = -(M + M^T).

In E, not in the Gram matrix 1 - E, every term is of the order of the gap, so accuracy is relative down to consensus.
One n x n product a step; a batch of schemes and seeds is integrated together, as rows of the table are only data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normlab.dynamics.fields import Field
from normlab.dynamics.flow.batch import Rules, pairwise
from normlab.dynamics.flow.solver import Rhs


class GramSystem:
    """State of a batch of B trajectories: E (B, n, n) and r (B, n) in one vector."""

    def __init__(self, fields: Sequence[Field], n: int, beta: float, *, causal: bool = False) -> None:
        self.fields, self.n, self.beta = list(fields), n, beta
        self.mask = np.tril(np.ones((n, n))) if causal else None
        self.cut = len(self.fields) * n * n

    def pack(self, theta: np.ndarray, r: np.ndarray) -> np.ndarray:
        """From directions (B, n, d) and radii (B, n)."""
        gaps = np.stack([pairwise(member) for member in theta])
        return np.concatenate([gaps.ravel(), r.ravel()])

    def unpack(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        b, n = len(self.fields), self.n
        return y[: self.cut].reshape(b, n, n), y[self.cut :].reshape(b, n)

    def _averages(self, t: float, y: np.ndarray, rules: Rules) -> tuple[np.ndarray, ...]:
        """E, W E, the rows' sums Z, <theta, A>, 1/s and r', in as few passes over n x n as there can be."""
        gaps, r = self.unpack(y)
        weights = gaps * -rules.heat(t, self.beta)[:, None, None]
        np.exp(weights, out=weights)
        if self.mask is not None:
            weights *= self.mask
        if rules.raw is not None:
            weights *= np.where(rules.raw[:, None], r, 1.0)[:, None, :]
        total = weights.sum(-1)
        along = 1.0 - np.einsum("bjk,bjk->bj", weights, gaps) / total  # (P E)_jj, as E is symmetric
        pulled = weights @ gaps
        size = np.sqrt(1.0 - np.einsum("bjk,bjk->bj", pulled, weights) / total**2) if rules.needs_size else along
        inverse, growth = rules(t, r, along, size)
        return gaps, pulled, total, along, size, inverse, growth

    def rhs_from(self, left: float) -> Rhs:
        rules = Rules([f.stage(left) for f in self.fields])

        def rhs(t: float, y: np.ndarray) -> np.ndarray:
            out = np.empty_like(y)
            turn, growth = self.unpack(out)
            gaps, pulled, total, along, _, inverse, growth[:] = self._averages(t, y, rules)
            # -M = (1/s) ( P E - <theta, A> E - (P E)_jj ), the coefficients of a row put together first.
            pulled *= (inverse / total)[..., None]
            pulled -= gaps * (inverse * along)[..., None]
            pulled -= (inverse * (1.0 - along))[..., None]
            np.add(pulled, pulled.transpose(0, 2, 1), out=turn)
            return out

        return rhs

    def observe(self, t: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Gap, mean radius, root mean square |theta'| and rate of the mean cosine of each member.

        |theta_j'|^2 = (|A_j|^2 - <theta_j, A_j>^2) / s_j^2; the sum over E' needs only sums of rows.
        """
        rules = Rules([f.stage(t) for f in self.fields])
        rules.needs_size = True
        gaps, pulled, total, along, size, inverse, _ = self._averages(t, y, rules)
        speed = np.sqrt(np.mean(np.maximum(size**2 - along**2, 0.0) * inverse**2, axis=-1))
        rows, n = gaps.sum(-1), self.n
        climb = np.sum(inverse * (along * rows + n * (1.0 - along) - pulled.sum(-1) / total), axis=-1)
        return self.gap(y), self.unpack(y)[1].mean(1), speed, 2.0 * climb / (n * (n - 1))

    def gap(self, y: np.ndarray) -> np.ndarray:
        """1 - mean pairwise cosine of each member."""
        gaps, _ = self.unpack(y)
        result: np.ndarray = gaps.sum((1, 2)) / (self.n * (self.n - 1))
        return result

    def settle(self, y: np.ndarray) -> np.ndarray:
        return y
