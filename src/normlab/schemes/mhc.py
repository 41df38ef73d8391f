"""mHC: n streams mixed by a doubly stochastic matrix; as the paper has it, and as DeepSeek-V4, V4.1 and GLM-5 ship it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from normlab.schemes.base import Access, Card, Frame, Growth, SchemeConfig, Site, applied
from normlab.schemes.depth_kernels import Kernels
from normlab.schemes.hyper import (
    MixingWeights,
    StreamHead,
    Streams,
    growth_law,
    mean_bias,
    normed_product,
    read_streams,
    sigmoid,
    stream_traffic,
    write_streams,
)
from normlab.schemes.norms import RMSNorm
from normlab.schemes.ops.streams import Gates, sigmoid_read
from normlab.schemes.sinkhorn import sinkhorn

Head = Literal["learned", "mean", "sum"]


class StartBiases(NamedTuple):
    """The biases of one branch at the start."""

    pre: list[float]
    post: list[float]
    on_diagonal: float
    off_diagonal: float


class ManifoldHyperConnections(SchemeConfig):
    """X <- H_res X + H_post^T F(H_pre X), H_res doubly stochastic"""

    card = Card(
        family="multi-stream",
        equation="X <- H_res X + H_post^T F(N(H_pre X)); H_pre = sigmoid, H_post = 2 sigmoid, H_res = Sinkhorn(exp); "
        "output sum_k sigmoid(.)_k X_k",
        citation="Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections, arXiv 2512.24880; the head as "
        "DeepSeek-V4 ships it (transformers, deepseek_v4)",
        growth="like pre_norm up to the initial weights: H_res conserves the sum of the streams",
        init="alpha = 0.01, W = 0; initial: paper has b_pre = -3 with +3 at stream i mod n, b_post = 0, b_res = 6I - 3 "
        "(appendix A.6, as PaddleFleet's pull request 1849 quotes it); head: b = -ln(n-1), the mean; branches as GPT-2",
        extra_parameters="(M+1)*N+M*((n*d+1)*(2*n+n*n)+3)+(n*d+1)*n+1",
        traffic="34d for n = 4 (the paper's count, reads and writes)",
        traps=(
            "H_res is n x n and is applied: elsewhere it is computed and dropped, or Sinkhorn runs on 1 x n slices, "
            "which makes every stream the sum of all",
            "DeepSeek-V4's `comb` is the transpose of H_res: a port that forgets the transposition is wrong in silence, "
            "because both are doubly stochastic",
            "b = 0 everywhere, transformers' own start, makes H_res nearly uniform and the streams equal",
            "20 Sinkhorn steps give rows that sum to 1 exactly, but columns converge slowly near a permutation: after a "
            "random move of size 0.1 from the start they miss 1 by 2e-3, of size 0.3 by 6e-3, of size 1 by 2e-2",
            "eps (1e-6 as shipped) stands in H_pre, in the first softmax and in every sum; the paper has none",
            "single_pass (DeepSeek-V4.1): its initialisation is not published where we could read it; A.6 is used",
        ),
        parent="pre_norm",
    )
    name: Literal["mhc"] = "mhc"
    streams: int = Field(4, ge=1, description="n, the expansion rate")
    iterations: int = Field(20, ge=1, description="Sinkhorn steps, columns then rows")
    alpha: float = Field(0.01, description="initial scale of the data-dependent part")
    initial: Literal["paper", "stream", "identity"] = Field(
        "paper",
        description="paper: appendix A.6; stream: the public mHC-lite code's; identity: equal to pre_norm",
    )
    head: Head | None = Field(
        None, description="what closes: learned (DeepSeek-V4), mean (GLM-5) or sum; null: learned with paper, else sum"
    )
    eps: float = Field(0.0, ge=0, lt=1, description="added to H_pre and to Sinkhorn's sums (shipped: 1e-6)")
    single_pass: bool = Field(False, description="each read takes the H_pre of the branch before it; the first is e_0")

    @model_validator(mode="after")
    def _possible(self) -> ManifoldHyperConnections:
        if self.single_pass and self.head is not None:
            raise ValueError("head: with single_pass the last H_pre is the head; leave it out")
        return self

    @property
    def closing(self) -> Head | None:
        """How the streams are closed; None: by the last H_pre."""
        if self.single_pass:
            return None
        return self.head or ("learned" if self.initial == "paper" else "sum")

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        return stream_traffic(self.streams)

    def mixing_flops(self, frame: Frame) -> float:
        n = self.streams
        products = n + n * n + n + n * (2 * n + n * n)  # H_pre X, H_res X, H_post F, vec(X) W
        head = n + n * n if self.closing == "learned" else 0
        return 2.0 * frame.dim * (len(frame.sites) * products + head)

    def build(self, frame: Frame) -> ManifoldHyperConnectionsStream:
        return ManifoldHyperConnectionsStream(self, frame)

    def neutral(self) -> ManifoldHyperConnections:
        return self.replace(initial="identity", eps=0.0)

    def start(self, index: int) -> StartBiases:
        n = self.streams
        home = [k == index % n for k in range(n)]
        if self.initial == "paper":
            return StartBiases([3.0 if at else -3.0 for at in home], [0.0] * n, 3.0, -3.0)
        if self.initial == "stream":
            lean = [1.0 if at else -1.0 for at in home]
            return StartBiases(lean, lean, 0.0, -8.0)
        # identity: reads the mean, writes 1, and e^-50 is 0 beside 1 in float32
        return StartBiases([mean_bias(n) if n > 1 else 50.0] * n, [0.0] * n, 0.0, -50.0)

    def growth(self, frame: Frame) -> Growth:
        n = self.streams
        pre, mixes = [float(k == 0) for k in range(n)], []
        for site in frame.sites:
            start = self.start(site.index)
            here = [sigmoid(b) for b in start.pre]
            post = [2 * sigmoid(b) for b in start.post]
            mixes.append((pre if self.single_pass else here, _at_rest(n, start), post))
            pre = here
        closing = {"sum": [1.0] * n, "mean": [1 / n] * n, "learned": [sigmoid(mean_bias(n))] * n, None: pre}
        return growth_law(mixes, closing[self.closing])


def _at_rest(n: int, start: StartBiases) -> list[list[float]]:
    """H_res of biases with one number on the diagonal and one off it: symmetric, so one normalisation is enough."""
    off = math.exp(start.off_diagonal - start.on_diagonal)
    total = 1 + (n - 1) * off
    return [[(1.0 if i == j else off) / total for j in range(n)] for i in range(n)]


class Carried(NamedTuple):
    """The stream of `single_pass`: the streams and the weights that the next read takes."""

    streams: Tensor
    pre: Tensor


class ManifoldHyperConnectionsStream(Streams):
    """X <- H_res X + H_post^T F(N(H_pre X)). The stream X is [..., n, d]."""

    config: ManifoldHyperConnections

    def __init__(self, config: ManifoldHyperConnections, frame: Frame) -> None:
        n, count = config.streams, len(frame.sites)
        super().__init__(config, frame, streams=n, closes_at=float(n) if config.closing == "sum" else 1.0)
        self.project = nn.Parameter(torch.empty(count, n * frame.dim, 2 * n + n * n))  # pre, post, res
        self.bias = nn.Parameter(torch.empty(count, 2 * n + n * n))
        self.alpha = nn.Parameter(torch.empty(count, 3))
        learned = config.closing == "learned"
        self.head = StreamHead(n, frame, alpha=config.alpha, eps=config.eps) if learned else None
        self.fill()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        n = self.config.streams
        self.project.zero_()
        self.alpha.fill_(self.config.alpha)
        for index, bias in enumerate(self.bias):
            start = self.config.start(index)
            bias[:n] = torch.tensor(start.pre, dtype=bias.dtype)
            bias[n : 2 * n] = torch.tensor(start.post, dtype=bias.dtype)
            bias[2 * n :].fill_(start.off_diagonal).view(n, n).fill_diagonal_(start.on_diagonal)

    def in_one(self, x: Tensor, site: Site, norm: RMSNorm, kernels: Kernels) -> tuple[Tensor, ...]:
        config = self.config
        gates = Gates(pre_eps=config.eps, iterations=config.iterations, norm_eps=self.frame.eps)
        project, alpha, bias = (self.slice(name, site) for name in ("project", "alpha", "bias"))
        return sigmoid_read(x, project, alpha, bias, norm=norm, gates=gates, kernels=kernels)

    def product(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        logits, flat = normed_product(streams.flatten(-2), self.slice("project", site), self.frame.eps)
        return logits, flat.view(streams.shape)

    def gates(self, logits: Tensor | None, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        assert logits is not None
        n, alpha, bias = self.streams, self.slice("alpha", site), self.slice("bias", site)
        counts = [n, n, n * n]
        sizes = torch.cat([one.expand(count) for one, count in zip(alpha.split(1), counts, strict=True)])
        both, res = torch.addcmul(bias, logits, sizes).split([2 * n, n * n], dim=-1)
        pre, post = torch.sigmoid(both).split(n, dim=-1)
        h_res = sinkhorn(res.unflatten(-1, (n, n)), self.config.iterations, eps=self.config.eps)
        return pre + self.config.eps if self.config.eps else pre, 2 * post, h_res

    def open(self, x: Tensor) -> Any:
        streams = super().open(x)
        if not self.config.single_pass:
            return streams
        pre = torch.zeros(self.streams, dtype=x.dtype, device=x.device)
        pre[0] = 1.0
        return Carried(streams, pre.expand(streams.shape[:-1]))

    def read(self, stream: Any, site: Site) -> tuple[Tensor, Any]:
        if not self.config.single_pass:
            return super().read(stream, site)
        streams, pre = stream
        following, post, res = (self.weigh(c).to(streams.dtype) for c in self.coefficients(streams, site))
        return self.enter(read_streams(streams, pre), site), (MixingWeights(res, post), following)

    def write(self, stream: Any, y: Tensor, carry: Any, site: Site) -> Any:
        if not self.config.single_pass:
            return super().write(stream, y, carry, site)
        weights, following = carry
        return Carried(write_streams(stream.streams, self.leave(y, site), weights), following)

    def close(self, stream: Any) -> Tensor:
        closing = self.config.closing
        if closing == "sum":
            return super().close(stream)
        if closing is None:
            return applied(self.final, self._read(read_streams(stream.streams, stream.pre)))
        if self.head is None:
            return applied(self.final, self._read(stream.mean(-2)))
        weights = self.weigh(self.head(stream)).to(stream.dtype)
        return applied(self.final, self._read(read_streams(stream, weights)))
