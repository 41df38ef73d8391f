"""n parallel streams with learned mixing: hyper-connections (static and dynamic) and mHC."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import Card, Frame, Scheme, SchemeConfig, Site
from normlab.schemes.norms import inverse_rms, precise
from normlab.schemes.rows import GPT2

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


def _combine(weights: list[float], streams: Matrix) -> list[float]:
    return [sum(w * s[i] for w, s in zip(weights, streams, strict=True)) for i in range(len(streams[0]))]


class HyperConnections(SchemeConfig):
    """[h; H'] = A^T H, H <- H' + beta (x) F(N(h)); A, beta static plus s tanh(N(H) W) when dynamic"""

    card = Card(
        family="n streams",
        equation="[h; H'] = A^T H, H <- H' + beta (x) F(N(h)); A, beta += s tanh(N(H) W); output: their sum",
        citation="Zhu et al. 2024, Hyper-Connections, arXiv 2409.19606",
        growth="1 + i at the start, as pre_norm",
        init="A = [e_(i mod n) | I], beta = 1, W = 0, s = 0.01; branches as GPT-2",
        extra_parameters="(M+1)*N+M*(n*(n+2)+d*(n+3)+2)",
        traffic="(2n+1)d read, (n+1)d written",
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

    def build(self, frame: Frame) -> HyperConnectionsStream:
        return HyperConnectionsStream(self, frame)

    def neutral(self) -> HyperConnections:
        return HyperConnections()

    def growth(self, frame: Frame) -> list[Any]:
        n = self.streams
        eye = [[float(i == j) for j in range(n)] for i in range(n)]
        return _growth([(eye[site.index % n], eye, [1.0] * n) for site in frame.sites], [1.0] * n)


class Mixed(NamedTuple):
    """What a read leaves for its write: the mixed streams and the write weights."""

    streams: Tensor
    write: Tensor


class HyperConnectionsStream(Scheme):
    """[h; H'] = A^T H, H <- H' + beta (x) F(N(h)). The stream H is [..., n, d]."""

    config: HyperConnections

    def __init__(self, config: HyperConnections, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        n, d, count = config.streams, frame.dim, len(frame.sites)
        self.mix = nn.Parameter(torch.empty(count, n, n + 1))  # A = [A_m | A_r]
        self.beta = nn.Parameter(torch.empty(count, n))
        if config.dynamic:
            self.gain = nn.Parameter(torch.empty(count, d))  # of the norm on H
            self.project = nn.Parameter(torch.empty(count, d, n + 2))  # W_m, W_r, W_beta
            self.scale = nn.Parameter(torch.empty(count, 2))  # s of A and of beta
        # The head sees a sum of n streams: see Scheme.input_scales.
        self.final = frame.new_norm(eps=frame.eps * config.streams**2)
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

    def coefficients(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        i, n = site.index, self.config.streams
        mix, beta = self.mix[i], self.beta[i]
        if self.config.dynamic:
            # tanh(N(H) W): the gain folds into W and 1/rms factors out, so N(H) is never materialised.
            logits = precise(streams @ (self.gain[i, :, None] * self.project[i]).to(streams.dtype))
            moved = torch.tanh(logits * inverse_rms(streams, self.frame.eps))
            mix = mix + self.scale[i, 0] * moved[..., : n + 1]
            beta = beta + self.scale[i, 1] * moved[..., n + 1]
        return self.weigh(mix).to(streams.dtype), self.weigh(beta).to(streams.dtype)

    def open(self, x: Tensor) -> Tensor:
        return self._source(x).unsqueeze(-2).expand(*x.shape[:-1], self.config.streams, x.shape[-1])

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, Mixed]:
        mix, beta = self.coefficients(stream, site)
        mixed = mix.transpose(-1, -2) @ stream
        return self.enter(mixed[..., 0, :], site), Mixed(mixed[..., 1:, :], beta)

    def write(self, stream: Tensor, y: Tensor, carry: Mixed, site: Site) -> Tensor:
        return carry.streams + carry.write[..., :, None] * self.leave(y, site)[..., None, :]

    def close(self, stream: Tensor) -> Tensor:
        return self.final(self._read(stream.sum(-2)))

    def init_branch_(self, branch: Any, site: Site) -> None:
        GPT2.fill_(branch, site, options=self.config, std=self.frame.init_std)


class ManifoldHyperConnections(SchemeConfig):
    """X <- H_res X + H_post^T F(H_pre X), H_res doubly stochastic"""

    card = Card(
        family="n streams",
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

    def build(self, frame: Frame) -> ManifoldHyperConnectionsStream:
        return ManifoldHyperConnectionsStream(self, frame)

    def neutral(self) -> ManifoldHyperConnections:
        return ManifoldHyperConnections(initial="identity")

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


class ManifoldHyperConnectionsStream(Scheme):
    """X <- H_res X + H_post^T F(N(H_pre X)). The stream X is [..., n, d]."""

    config: ManifoldHyperConnections

    def __init__(self, config: ManifoldHyperConnections, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        n, count = config.streams, len(frame.sites)
        self.project = nn.Parameter(torch.empty(count, n * frame.dim, 2 * n + n * n))  # pre, post, res
        self.bias = nn.Parameter(torch.empty(count, 2 * n + n * n))
        self.alpha = nn.Parameter(torch.empty(count, 3))
        # The head sees a sum of n streams: see Scheme.input_scales.
        self.final = frame.new_norm(eps=frame.eps * config.streams**2)
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
        """H_pre [..., n], H_post [..., n], H_res [..., n, n], in float32 or better."""
        i, n = site.index, self.config.streams
        flat = streams.flatten(-2)
        # RMSNorm(vec X) W without materialising the normalised copy.
        logits = precise(flat @ self.project[i].to(flat.dtype)) * inverse_rms(flat, self.frame.eps)
        sizes = torch.repeat_interleave(self.alpha[i], _counts(n, self.alpha.device), output_size=2 * n + n * n)
        pre, post, res = (logits * sizes + self.bias[i]).split([n, n, n * n], dim=-1)
        h_res = sinkhorn(res.unflatten(-1, (n, n)), self.config.iterations)
        return self.weigh(torch.sigmoid(pre)), self.weigh(2 * torch.sigmoid(post)), self.weigh(h_res)

    def open(self, x: Tensor) -> Tensor:
        return self._source(x).unsqueeze(-2).expand(*x.shape[:-1], self.config.streams, x.shape[-1])

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, Mixed]:
        h_pre, h_post, h_res = (h.to(stream.dtype) for h in self.coefficients(stream, site))
        h = (h_pre[..., None, :] @ stream).squeeze(-2)
        return self.enter(h, site), Mixed(h_res @ stream, h_post)

    def write(self, stream: Tensor, y: Tensor, carry: Mixed, site: Site) -> Tensor:
        return carry.streams + carry.write[..., :, None] * self.leave(y, site)[..., None, :]

    def close(self, stream: Tensor) -> Tensor:
        return self.final(self._read(stream.sum(-2)))

    def init_branch_(self, branch: Any, site: Site) -> None:
        GPT2.fill_(branch, site, options=self.config, std=self.frame.init_std)


def _counts(n: int, device: torch.device) -> Tensor:
    return torch.tensor([n, n, n * n], device=device)


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """exp(logits), columns then rows normalised in turn, in the log domain (no overflow): [..., n, n]."""
    logits = precise(logits)
    for _ in range(iterations):
        logits = logits - torch.logsumexp(logits, dim=-2, keepdim=True)
        logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return logits.exp()
