"""n parallel streams with learned mixing: hyper-connections (static and dynamic) and mHC."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import GPT2, Access, Card, Frame, Scheme, SchemeConfig, Site
from normlab.schemes.depth_reads import full_precision, keys
from normlab.schemes.norms import precise
from normlab.schemes.sinkhorn import sinkhorn

Matrix = list[list[float]]


def _growth(mixes: list[tuple[list[float], Matrix, list[float]]], close: list[float]) -> list[Any]:
    """sum_i M[l,i]^2 for X <- R X + w (x) F(p X), all streams equal to the embedding at the start."""
    n = len(close)
    streams = [[1.0] for _ in range(n)]  # per stream, its coefficients over the sources
    law = []
    for p, r, w in mixes:
        law.append(sum(c * c for c in _combine(p, streams)))
        streams = [[*_combine(r[k], streams), w[k]] for k in range(n)]
    return [*law, sum(c * c for c in _combine(close, streams))]


def _traffic(n: int, *, dynamic: bool = True) -> list[Access]:
    """(8n + 2)d + 2n^2 + 4n with each operation on its own: 34d for n = 4; a fused kernel needs (3n + 2)d."""
    computed = [Access("compute the coefficients", n, 0.0, n * n + 2 * n)] if dynamic else []
    return [
        *computed,
        Access("read: H_pre X", n, 1.0, n),
        Access("write: H_post F", 1.0, n, n),
        Access("mix: H_res X", n, n, n * n),
        Access("residual merge", 2.0 * n, n),
    ]


def _combine(weights: list[float], streams: Matrix) -> list[float]:
    return [sum(w * s[i] for w, s in zip(weights, streams, strict=True)) for i in range(len(streams[0]))]


class HyperConnections(SchemeConfig):
    """[h; H'] = A^T H, H <- H' + beta (x) F(N(h)); A, beta static plus s tanh(N(H) W) when dynamic"""

    card = Card(
        family="multi-stream",
        equation="[h; H'] = A^T H, H <- H' + beta (x) F(N(h)); A, beta += s tanh(N(H) W); output: their sum",
        citation="Zhu et al. 2024, Hyper-Connections, arXiv 2409.19606",
        growth="1 + i at the start, as pre_norm",
        init="A = [e_(i mod n) | I], beta = 1, W = 0, s = 0.01; branches as GPT-2",
        extra_parameters="(M+1)*N+M*(n*(n+2)+d*(n+3)+2)",
        traffic="(8n+2)d operation by operation, (3n+2)d in a fused kernel, reads and writes",
        traps=(
            "H' = A_r^T H must be applied: two public libraries compute it and never use it",
            "the paper also scales the output projections' initial std by a factor of sqrt(n); its direction is not "
            "stated where we could read it, so it is not applied here",
            "no weight decay on the static coefficients",
        ),
        parent="pre_norm",
    )
    name: Literal["hyper_connections"] = "hyper_connections"
    streams: int = Field(4, ge=1, description="n, the expansion rate")
    dynamic: bool = Field(True, description="coefficients depend on the streams")

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        return _traffic(self.streams, dynamic=self.dynamic)

    def mixing_flops(self, frame: Frame) -> float:
        n = self.streams
        products = n * (n + 1) + n + (n * (n + 2) if self.dynamic else 0)  # A^T H, beta (x) F, H W
        return 2.0 * len(frame.sites) * frame.dim * products

    def build(self, frame: Frame) -> HyperConnectionsStream:
        return HyperConnectionsStream(self, frame)

    def neutral(self) -> HyperConnections:
        return self  # at the start

    def growth(self, frame: Frame) -> list[Any]:
        n = self.streams
        eye = [[float(i == j) for j in range(n)] for i in range(n)]
        return _growth([(eye[site.index % n], eye, [1.0] * n) for site in frame.sites], [1.0] * n)


class Weights(NamedTuple):
    """What a read leaves for its write, H <- res H + post (x) y. The streams are mixed there: nothing lies between."""

    res: Tensor  # [..., n, n]
    post: Tensor  # [..., n]


def read_streams(streams: Tensor, weights: Tensor) -> Tensor:
    """sum_k weights_k H_k: [..., n, d], [..., n] (or [n]) -> [..., d], saving nothing beside its arguments."""
    weights = weights.expand(streams.shape[:-1])
    return (weights.unsqueeze(-2) @ streams).squeeze(-2)


def write_streams(streams: Tensor, y: Tensor, weights: Weights) -> Tensor:
    """res H + post (x) y in one buffer, saving nothing beside its arguments."""
    n, d = streams.shape[-2:]
    post = weights.post.expand(streams.shape[:-1]).reshape(-1, n, 1)  # static weights are the same for every token
    res = weights.res.expand(*streams.shape[:-1], n).reshape(-1, n, n)
    added = torch.bmm(post, y.reshape(-1, 1, d))
    return torch.baddbmm(added, res, streams.reshape(-1, n, d)).view(streams.shape)


def normed_product(x: Tensor, matrix: Tensor, eps: float) -> Tensor:
    """RMSNorm(x) matrix, in float32 or better, without materialising the normalised copy: 1/rms factors out."""
    with full_precision(x.device):
        found = keys(x.reshape(-1, x.shape[-1]), matrix.to(precise(x).dtype).t(), eps)
    return found.view(*x.shape[:-1], found.shape[-1])


class Streams(Scheme):
    """n streams X in [..., n, d]: X <- res X + post (x) F(N(pre . X)), with the coefficients of a subclass."""

    init = GPT2

    def __init__(self, config: HyperConnections | ManifoldHyperConnections, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        self.streams = config.streams
        # The head sees a sum of n streams: see Scheme.input_scales.
        self.final = frame.new_norm(eps=frame.eps * config.streams**2)

    @abstractmethod
    def coefficients(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """pre [..., n], post [..., n] and res [..., n, n], in float32 or better."""

    def open(self, x: Tensor) -> Tensor:
        return self._source(x).unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1])

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, Weights]:
        pre, post, res = (self.weigh(c).to(stream.dtype) for c in self.coefficients(stream, site))
        return self.enter(read_streams(stream, pre), site), Weights(res, post)

    def write(self, stream: Tensor, y: Tensor, carry: Weights, site: Site) -> Tensor:
        return write_streams(stream, self.leave(y, site), carry)

    def close(self, stream: Tensor) -> Tensor:
        return self.final(self._read(stream.sum(-2)))


class HyperConnectionsStream(Streams):
    """[h; H'] = A^T H, H <- H' + beta (x) F(N(h)). The stream H is [..., n, d]."""

    config: HyperConnections

    def __init__(self, config: HyperConnections, frame: Frame) -> None:
        super().__init__(config, frame)
        n, d, count = config.streams, frame.dim, len(frame.sites)
        self.mix = nn.Parameter(torch.empty(count, n, n + 1))  # A = [A_m | A_r]
        self.beta = nn.Parameter(torch.empty(count, n))
        if config.dynamic:
            self.gain = nn.Parameter(torch.empty(count, d))  # of the norm on H
            self.project = nn.Parameter(torch.empty(count, d, n + 2))  # W_m, W_r, W_beta
            self.scale = nn.Parameter(torch.empty(count, 2))  # s of A and of beta
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        n = self.config.streams
        self.mix[:, :, 1:] = torch.eye(n)
        self.mix[:, :, 0] = torch.eye(n)[torch.arange(len(self.mix)) % n]
        self.beta.fill_(1.0)
        if self.config.dynamic:
            self.gain.fill_(1.0)
            self.project.zero_()
            self.scale.fill_(0.01)

    def coefficients(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        i, n = site.index, self.config.streams
        mix, beta = self.mix[i], self.beta[i]
        if self.config.dynamic:
            # tanh(N(H) W), the gain folded into W
            moved = torch.tanh(normed_product(streams, self.gain[i, :, None] * self.project[i], self.frame.eps))
            mix = mix + self.scale[i, 0] * moved[..., : n + 1]
            beta = beta + self.scale[i, 1] * moved[..., n + 1]
        return mix[..., 0], beta, mix[..., 1:].transpose(-1, -2)


class ManifoldHyperConnections(SchemeConfig):
    """X <- H_res X + H_post^T F(H_pre X), H_res doubly stochastic"""

    card = Card(
        family="multi-stream",
        equation="X <- H_res X + H_post^T F(N(H_pre X)); H_pre = sigmoid, H_post = 2 sigmoid, H_res = Sinkhorn(exp)",
        citation="Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections, arXiv 2512.24880",
        growth="like pre_norm up to the initial weights: H_res conserves the sum of the streams",
        init="alpha = 0.01, W = 0; b_pre, b_post = -1, +1 at stream i mod n; b_res = 0 on the diagonal, -8 off it "
        "(as the public mHC-lite code; the paper's text that we could read does not state b); branches as GPT-2",
        extra_parameters="(M+1)*N+M*((n*d+1)*(2*n+n*n)+3)",
        traffic="34d for n = 4 (the paper's count, reads and writes)",
        traps=(
            "H_res is n x n and is applied: elsewhere it is computed and dropped, or Sinkhorn runs on 1 x n slices, "
            "which makes every stream the sum of all",
            "b = 0 everywhere would make H_res uniform and the streams equal for ever",
            "20 Sinkhorn steps give rows that sum to 1 exactly and columns to 1e-3 only while H_res is not too near a "
            "permutation: after a move of size 0.1 from the start 4e-4, of size 0.3 2e-3, of size 1 3e-2",
        ),
        parent="pre_norm",
    )
    name: Literal["mhc"] = "mhc"
    streams: int = Field(4, ge=1, description="n, the expansion rate")
    iterations: int = Field(20, ge=1, description="Sinkhorn steps, columns then rows")
    alpha: float = Field(0.01, description="initial scale of the data-dependent part")
    initial: Literal["stream", "identity"] = Field(
        "stream",
        description="stream: each branch leans to stream i mod n; identity: all streams alike, equal to pre_norm",
    )

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        return _traffic(self.streams)

    def mixing_flops(self, frame: Frame) -> float:
        n = self.streams
        products = n + n * n + n + n * (2 * n + n * n)  # H_pre X, H_res X, H_post F, vec(X) W
        return 2.0 * len(frame.sites) * frame.dim * products

    def build(self, frame: Frame) -> ManifoldHyperConnectionsStream:
        return ManifoldHyperConnectionsStream(self, frame)

    def neutral(self) -> ManifoldHyperConnections:
        return self.replace(initial="identity")

    def start(self, index: int) -> tuple[list[float], list[float], float]:
        """b_pre, b_post and the off-diagonal of b_res at the start."""
        n = self.streams
        if self.initial == "identity":  # reads the mean, writes 1, and e^-50 is 0 beside 1 in float32
            return [-math.log(n - 1) if n > 1 else 50.0] * n, [0.0] * n, -50.0
        lean = [1.0 if k == index % n else -1.0 for k in range(n)]
        return lean, lean, -8.0

    def growth(self, frame: Frame) -> list[Any]:
        n = self.streams
        mixes = []
        for site in frame.sites:
            pre, post, off = self.start(site.index)
            # Symmetric with equal rows, so one normalisation is the Sinkhorn fixed point.
            total = 1 + (n - 1) * math.exp(off)
            res = [[(1.0 if i == j else math.exp(off)) / total for j in range(n)] for i in range(n)]
            mixes.append(([_sigmoid(b) for b in pre], res, [2 * _sigmoid(b) for b in post]))
        return _growth(mixes, [1.0] * n)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class ManifoldHyperConnectionsStream(Streams):
    """X <- H_res X + H_post^T F(N(H_pre X)). The stream X is [..., n, d]."""

    config: ManifoldHyperConnections

    def __init__(self, config: ManifoldHyperConnections, frame: Frame) -> None:
        super().__init__(config, frame)
        n, count = config.streams, len(frame.sites)
        self.project = nn.Parameter(torch.empty(count, n * frame.dim, 2 * n + n * n))  # pre, post, res
        self.bias = nn.Parameter(torch.empty(count, 2 * n + n * n))
        self.alpha = nn.Parameter(torch.empty(count, 3))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        n = self.config.streams
        self.project.zero_()
        self.alpha.fill_(self.config.alpha)
        for index, bias in enumerate(self.bias):
            pre, post, off = self.config.start(index)
            res = torch.full((n, n), off).fill_diagonal_(0.0)
            bias.copy_(torch.cat([torch.tensor(pre), torch.tensor(post), res.flatten()]))

    def coefficients(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        i, n = site.index, self.config.streams
        logits = normed_product(streams.flatten(-2), self.project[i], self.frame.eps)
        sizes = torch.repeat_interleave(self.alpha[i], _counts(n, self.alpha.device), output_size=2 * n + n * n)
        pre, post, res = (logits * sizes + self.bias[i]).split([n, n, n * n], dim=-1)
        h_res = sinkhorn(res.unflatten(-1, (n, n)), self.config.iterations)
        return torch.sigmoid(pre), 2 * torch.sigmoid(post), h_res


def _counts(n: int, device: torch.device) -> Tensor:
    return torch.tensor([n, n, n * n], device=device)
