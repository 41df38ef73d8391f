"""The set complement theorem, executable: construction, rank bound, dispersion law, the law with a norm, the skip path.

One layer, one head, no positions: with `m[i]` the logits that token i's value adds, the logits after a prefix x of
length s are `z(x) = sum_i a_i m[x_i]`, a = softmax of scores that depend on token pairs only. A prefix is *balanced*
when its absent tokens share one logit and its present tokens share a lower one; the difference is the gap.

Everything is float64. "Post-Norm can Resharpen Attention" (arXiv 2510.08341) proves the bound and the 1/s law without
a norm; the laws with a norm and with a skip path are derived here and answer its third open question for uniform
attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.errors import InputError

F64 = torch.float64


def simplex(v: int) -> Tensor:
    """[v, v-1]: the standard basis of R^v seen inside the hyperplane of zero sum, so `E E^T = I - 1/v`.

    Rows are the corners of a regular simplex of edge sqrt(2); with these, c is the gap at length 1 itself.
    """
    if v < 2:
        raise InputError(f"set complement needs a vocabulary of 2 or more, but got {v}")
    corner = torch.eye(v, dtype=F64) - 1 / v
    basis = torch.linalg.svd(corner).Vh[: v - 1]
    result: Tensor = corner @ basis.T
    return result


@dataclass(frozen=True)
class TightSolution:
    """The tight solution: simplex embeddings, W_Q = W_K = 0, W_V W_O = -c I, unembedding = embedding transposed.

    `skip` adds the residual path, `gain` (where given) an RMSNorm of that gain after the addition.
    """

    v: int
    c: float
    skip: bool = False
    gain: float | None = None

    def logits(self, tokens: Tensor) -> Tensor:
        """[batch, s] prefixes -> [batch, v] logits of the last position, through the actual matrices."""
        embedding = simplex(self.v)
        x = embedding[tokens]
        attention = torch.softmax(torch.zeros(tokens.shape, dtype=F64), -1)
        h = torch.einsum("bs,bsd->bd", attention, x @ (-self.c * torch.eye(self.v - 1, dtype=F64)))
        if self.skip:
            h = h + x[:, -1]
        if self.gain is not None:
            h = self.gain * h / h.square().mean(-1, keepdim=True).sqrt()
        return h @ embedding.T


# -- balance -----------------------------------------------------------------------------------------------------------
def balance(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Per prefix, the mean gap (absent minus present logit) and the imbalance.

    The imbalance is the larger of the spread among absent and the spread among present tokens; 0 means balanced.
    """
    present = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, tokens, True)

    def spread(kept: Tensor) -> Tensor:
        high = logits.masked_fill(~kept, -torch.inf).amax(-1)
        low = logits.masked_fill(~kept, torch.inf).amin(-1)
        return (high - low).clamp_min(0)

    def mean(kept: Tensor) -> Tensor:
        return (logits * kept).sum(-1) / kept.sum(-1)

    return mean(~present) - mean(present), torch.maximum(spread(present), spread(~present))


def rank_needed(shift: Tensor, gap: Tensor) -> int:
    """Rank of the length-1 logits `m = shift 1^T - diag(gap)` of a balanced model: at least v - 1 when no gap is 0."""
    return int(torch.linalg.matrix_rank(shift[:, None] - torch.diag(gap)))


def least_imbalance(v: int, rank: int, c: float = 1.0) -> float:
    """How far any length-1 logits of this rank stay from balance with gap c, in Frobenius norm (Eckart-Young).

    Logits matter up to a shift of each row, and `m - row means` of the balanced target is -c (I - 1/v), whose v - 1
    nonzero singular values all equal c; the best approximation of rank r misses v - 1 - r of them.
    """
    result: float = c * max(v - 1 - rank, 0) ** 0.5
    return result


# -- the laws ----------------------------------------------------------------------------------------------------------
def combined_gap(gaps: Tensor) -> Tensor:
    """Balanced at lengths 1 and 2 implies balanced at every s, with gap `1 / sum_j 1/gap_1(x_j)`; [.., s] -> [..]."""
    return 1 / (1 / gaps).sum(-1)


def balanced_attention(gaps: Tensor) -> Tensor:
    """The attention that balance at length 2 forces: `a_i = gap(x) / gap_1(x_i)`, so the scores are -log gap_1."""
    return torch.softmax(-gaps.log(), -1)


def gap(s: Tensor | int, c: float) -> Tensor:
    """Without a norm: c / s."""
    return c / torch.as_tensor(s, dtype=F64)


def gap_with_norm(s: Tensor | int, v: int, gain: float) -> Tensor:
    """With RMSNorm on the attention output: `g sqrt(v (v-1) / (s (v-s)))`, whatever c is.

    It falls like s^-1/2 up to v/2 and rises again behind: the norm divides by an output that itself shrinks.
    """
    s = torch.as_tensor(s, dtype=F64)
    return gain * torch.sqrt(v * (v - 1) / (s * (v - s)))


def total_variation(s: Tensor | int, v: int, gap: Tensor | float) -> Tensor:
    """Of a balanced model: the mass on present tokens, `s e^-gap / (s e^-gap + v - s)`."""
    s = torch.as_tensor(s, dtype=F64)
    mass = s * torch.exp(-torch.as_tensor(gap, dtype=F64))
    return mass / (mass + v - s)


def gap_for(tv: float, s: int, v: int) -> float:
    """The gap at length s at which the total variation is `tv`."""
    if not 0 < tv < s / v:
        raise InputError(
            f"a balanced model with a positive gap has a total variation between 0 and s/v = {s / v:.3g} at s={s}, "
            f"v={v}; {tv} was asked"
        )
    return float(torch.log(torch.tensor(s * (1 - tv) / (tv * (v - s)), dtype=F64)))


@dataclass(frozen=True)
class CalibratedLaws:
    """Both laws at one length: gap and total variation, without and with a norm."""

    length: int
    gap: float
    gap_with_norm: float
    tv: float
    tv_with_norm: float


def calibrated(v: int, tv: float = 0.01, s: int | None = None) -> list[CalibratedLaws]:
    """Both laws brought to the same total variation at one length (default v/4): the rows of the comparison."""
    s = s or max(v // 4, 1)
    need = gap_for(tv, s, v)
    c = need * s
    gain = need / float(gap_with_norm(s, v, 1.0))
    rows = []
    for length in range(1, v):
        plain, normed = gap(length, c), gap_with_norm(length, v, gain)
        rows.append(
            CalibratedLaws(
                length=length,
                gap=float(plain),
                gap_with_norm=float(normed),
                tv=float(total_variation(length, v, plain)),
                tv_with_norm=float(total_variation(length, v, normed)),
            )
        )
    return rows


# -- the skip path -----------------------------------------------------------------------------------------------------
def skip_counterexample(v: int, ratio: float = 0.5, value: float = 4.0) -> SkipCounterexample:
    """With a skip path at d = v - 1: balanced at lengths 1 and 2, not at 3."""
    if not 0 < ratio < 1:
        raise InputError(f"the skip path's strength relative to the value path lies between 0 and 1, not {ratio}")
    return SkipCounterexample(v, ratio, value)


@dataclass(frozen=True)
class SkipCounterexample:
    """Skip logits `+ r mu (I - 1/v)`, value logits `- mu (I - 1/v)`, own token scored log((1+r)/(1-r)) higher.

    At s = 2 the own token gets a = (1+r)/2, so its displacement mu a - r mu equals the other's, mu (1-r)/2: balanced.
    At s = 3 softmax gives a_own - a_other = 2r/(3-r), not r: imbalance mu r (1-r)/(3-r), for any r in (0, 1).
    """

    v: int
    ratio: float
    value: float

    def logits(self, tokens: Tensor) -> Tensor:
        embedding = simplex(self.v)
        own = torch.log(torch.tensor((1 + self.ratio) / (1 - self.ratio), dtype=F64))
        scores = own * (tokens == tokens[:, -1:])
        mixed = torch.einsum("bs,bsd->bd", torch.softmax(scores, -1), embedding[tokens])
        h = self.ratio * self.value * embedding[tokens[:, -1]] - self.value * mixed
        return h @ embedding.T

    def imbalance_at_3(self) -> float:
        return self.value * self.ratio * (1 - self.ratio) / (3 - self.ratio)


def last_token_wins(s: int, c: float) -> bool:
    """Skip path, uniform attention, any positive scale after the addition: the last token's logit is 1 - c/s above the
    absent ones, so the model repeats itself once s > c."""
    return s > c
