"""n streams that are gated and never mixed with each other: HY-V4's independent hyper-connections, Qwen4's residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from normlab.errors import ConfigError
from normlab.schemes.base import Access, Card, Frame, Growth, Scheme, SchemeConfig, Site, applied
from normlab.schemes.depth_kernels import Kernels, usable
from normlab.schemes.hyper import (
    StreamHead,
    Streams,
    growth_law,
    mean_bias,
    normed_product,
    read_streams,
    sigmoid,
)
from normlab.schemes.norms import RMSNorm, traced, watched
from normlab.schemes.ops.gated import gated_read
from normlab.schemes.ops.streams import Gates, Slices, sigmoid_read, write


class IndependentHyperConnections(SchemeConfig):
    """X_k <- X_k + post_k F(N(sum_j pre_j X_j)): hyper-connections without H_res"""

    card = Card(
        family="multi-stream",
        equation="X_k <- X_k + post_k F(N(sum_j pre_j X_j)); pre = sigmoid + eps, post = m sigmoid + eps; "
        "output sum_k (sigmoid(.) + eps)_k X_k",
        citation="HY-V4 as shipped in transformers (hy_v4: HYV4HyperConnection, HYV4HyperHead)",
        growth="1 + i at the start, as pre_norm: the streams begin equal and stay nearly so",
        init="W = N(0, 0.02^2), alpha = 0.01, b_pre = -ln(n-1), b_post = 0; the head alike; branches plain",
        extra_parameters="(M+1)*N+M*(2*n*(n*d+1)+2)+(n*d+1)*n+1",
        traffic="n d read for the coefficients, (2n+2)d read and (n+1)d written",
        traps=(
            "the streams differ only through post: with equal gates they are n copies of one",
            "transformers' norm there returns 1/rms, and the projection is multiplied by it: the projection of the "
            "normed streams all the same",
        ),
        parent="pre_norm",
    )
    name: Literal["independent_hc"] = "independent_hc"
    streams: int = Field(4, ge=2, description="n; one stream has nothing to choose between")
    magnitude: float = Field(2.0, gt=0, description="m, the largest post gate")
    alpha: float = Field(0.01, description="initial scale of the data-dependent part")
    eps: float = Field(1e-6, ge=0, lt=1, description="added to every gate")

    def build(self, frame: Frame) -> IndependentStream:
        return IndependentStream(self, frame)

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        n = self.streams
        return [
            Access("compute the coefficients", n, 0.0, 2.0 * n),
            Access("read: pre X", n, 1.0, n),
            Access("write: X + post F", n + 1.0, n, n),
        ]

    def mixing_flops(self, frame: Frame) -> float:
        n = self.streams
        return 2.0 * frame.dim * (len(frame.sites) * (2 * n + 2 * n * n) + n + n * n)

    def neutral(self) -> IndependentHyperConnections:
        return self.replace(alpha=0.0, eps=0.0, magnitude=2.0)

    def growth(self, frame: Frame) -> Growth:
        n, mean = self.streams, [sigmoid(mean_bias(self.streams))] * self.streams
        eye = [[float(i == j) for j in range(n)] for i in range(n)]
        return growth_law([(mean, eye, [self.magnitude / 2] * n)] * len(frame.sites), mean)


class IndependentStream(Streams):
    """X_k <- X_k + post_k F(N(sum_j pre_j X_j)). The stream X is [..., n, d]."""

    config: IndependentHyperConnections
    init = Scheme.init

    def __init__(self, config: IndependentHyperConnections, frame: Frame) -> None:
        super().__init__(config, frame, streams=config.streams, closes_at=1.0)
        n, count = config.streams, len(frame.sites)
        self.project = nn.Parameter(torch.empty(count, n * frame.dim, 2 * n))  # pre, post
        self.bias = nn.Parameter(torch.empty(count, 2 * n))
        self.alpha = nn.Parameter(torch.empty(count, 2))
        self.head = StreamHead(n, frame, alpha=config.alpha, eps=config.eps, std=frame.init_std)
        self.fill()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        n = self.config.streams
        self.project.normal_(std=self.frame.init_std)
        self.alpha.fill_(self.config.alpha)
        self.bias.zero_()
        self.bias[:, :n] = mean_bias(n)

    unmixed = True

    def product(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        logits, flat = normed_product(streams.flatten(-2), self.slice("project", site), self.frame.eps)
        return logits, flat.view(streams.shape)

    def gates(self, logits: Tensor | None, site: Site) -> tuple[Tensor, Tensor, None]:
        assert logits is not None
        config, alpha, bias = self.config, self.slice("alpha", site), self.slice("bias", site)
        pre, post = torch.addcmul(bias.view(2, -1), logits.unflatten(-1, (2, -1)), alpha[:, None]).unbind(-2)
        return torch.sigmoid(pre) + config.eps, config.magnitude * torch.sigmoid(post) + config.eps, None

    def in_one(self, x: Tensor, site: Site, norm: RMSNorm, kernels: Kernels) -> tuple[Tensor, ...]:
        config = self.config
        gates = Gates(pre_eps=config.eps, size=config.magnitude, post_eps=config.eps, norm_eps=self.frame.eps)
        project, alpha, bias = (self.slice(name, site) for name in ("project", "alpha", "bias"))
        return sigmoid_read(x, project, alpha, bias, norm=norm, gates=gates, kernels=kernels)

    def close(self, stream: Tensor) -> Tensor:
        weights = self.weigh(self.head(stream)).to(stream.dtype)
        return applied(self.final, self._read(read_streams(stream, weights)))


class GatedResidual(SchemeConfig):
    """X_k <- X_k + 2 sigmoid(W_i x^ / n)_k F(mean_k sigmoid(W_u silu(W_d x^ / n))_k * x^_k), x^_k = N_k(X_k)"""

    card = Card(
        family="multi-stream",
        equation="x^_k = N_k(X_k); z = mean_k sigmoid(W_u silu(W_d x^ / n))_k * x^_k; "
        "X_k <- X_k + 2 sigmoid(W_i x^ / n)_k F(z); output the same z, without a final norm",
        citation="Qwen4-Exp as shipped in transformers (qwen4_exp: Qwen4ExpTextGatedResidual)",
        growth="constant 1/4: every read is half of a normed stream, whatever the streams' size",
        init="W_d, W_u, W_i = N(0, 0.02^2): gates near 1/2 and 1; norm gains 1; branches plain",
        own_start="what a branch reads is multiplied by about 1/2",
        extra_parameters="(M+1)*(n*N+2*n*d*r)+M*n*n*d",
        traffic="n d read for the norms and gates, (2n+2)d read and (n+1)d written; gates have the width n d",
        traps=(
            "the mix is the branch's pre-norm: there is no other, and no final norm",
            "the read's gates are vectors of width d for each stream, the write's are scalars",
            "both gates divide by n before their nonlinearity",
            "Qwen4-Exp stores the norm's gain as 1 + w, w = 0, and keeps the streams side by side [.., n d]",
        ),
    )
    name: Literal["gated_residual"] = "gated_residual"
    streams: int = Field(4, ge=2, description="n; Qwen4-Exp refuses one stream")
    rank: int | None = Field(
        None, ge=1, description="of the gates' low-rank map; Qwen4-Exp: 320; null: d/8, at least 1"
    )

    def build(self, frame: Frame) -> GatedResidualStream:
        return GatedResidualStream(self, frame)

    def symbols(self, frame: Frame) -> dict[str, int]:
        return {"r": self.rank or max(1, frame.dim // 8)}

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        n = self.streams
        return [
            Access("norms and gates", 2.0 * n, 2.0 * n),
            Access("read: gated mean", 2.0 * n, 1.0),
            Access("write: X + gate F", n + 1.0, n, n),
        ]

    def mixing_flops(self, frame: Frame) -> float:
        n, r, d = self.streams, self.symbols(frame)["r"], frame.dim
        read = 2.0 * 2 * n * d * r + 2.0 * n * d
        return (len(frame.sites) + 1) * read + len(frame.sites) * (2.0 * n * n * d + 2.0 * n * d)

    def growth(self, frame: Frame) -> Growth:
        return [0.25] * (len(frame.sites) + 1)


class Normed(NamedTuple):
    """What a read leaves for its write: the weights, and the streams if the read in one piece has handed them on."""

    post: Tensor  # [..., n]
    streams: Tensor | None = None  # [tokens, n, d]
    read: Tensor | None = None  # what was read


class GatedResidualStream(Scheme):
    """z = mean_k sigmoid(W_u silu(W_d x^ / n))_k * x^_k; X_k <- X_k + 2 sigmoid(W_i x^ / n)_k F(z)"""

    not_linear = "it normalises each stream before it gates it"
    closes_at = 1.0
    config: GatedResidual

    def __init__(self, config: GatedResidual, frame: Frame) -> None:
        super().__init__(config, frame, pre=False)
        n, d, count, rank = config.streams, frame.dim, len(frame.sites), config.symbols(frame)["r"]
        if n > d:
            raise ConfigError(
                f"scheme.streams: {n} streams are more than the width {d} has channels; give {d} or fewer"
            )
        self.norms = nn.ModuleList(nn.ModuleList(frame.new_norm() for _ in range(n)) for _ in range(count + 1))
        self.down = nn.Parameter(torch.empty(count + 1, rank, n * d))
        self.up = nn.Parameter(torch.empty(count + 1, n * d, rank))
        self.inject = nn.Parameter(torch.empty(count, n, n * d))
        self.slices = Slices()
        self.fill()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for matrix in (self.down, self.up, self.inject):
            matrix.normal_(std=self.frame.init_std)

    def open(self, x: Tensor) -> Tensor:
        return self._source(x).unsqueeze(-2).expand(*x.shape[:-1], self.config.streams, x.shape[-1])

    def normed(self, stream: Tensor, read: int) -> Tensor:
        norms = self.norms[read]
        assert isinstance(norms, nn.ModuleList)
        return torch.stack([norm(x) for norm, x in zip(norms, stream.unbind(-2), strict=True)], dim=-2)

    def mixed(self, normed: Tensor, read: int) -> Tensor:
        """mean_k sigmoid(W_u silu(W_d x^ / n))_k * x^_k"""
        flat, n = normed.flatten(-2), self.config.streams
        gates = torch.sigmoid(F.linear(F.silu(F.linear(flat, self.down[read]) / n), self.up[read]))
        return (gates.view(normed.shape).to(normed.dtype) * normed).mean(-2)

    def read_in_one(self, stream: Tensor, site: Site) -> tuple[Tensor, Normed] | None:
        """The read as one function (ops/gated.py), where it has the kernels and nobody looks inside."""
        if traced():
            return None
        norms = [*self.norms[site.index].children()]
        own = self.__dict__.keys().isdisjoint({"enter", "normed", "mixed"}) and type(self) is GatedResidualStream
        if self._tape is not None or not own or torch.is_autocast_enabled("cpu"):
            return None
        if not all(type(norm) is RMSNorm and not watched(norm) for norm in norms):
            return None
        weights: list[Tensor] = [norm.weight for norm in norms if isinstance(norm, RMSNorm)]
        names = ("down", "up", "inject")
        if (kernels := usable(stream, *weights, *(getattr(self, name) for name in names))) is None:
            return None
        down, up, inject = (self.slices.of(name, getattr(self, name), site.index) for name in names)
        x = stream.reshape(-1, *stream.shape[-2:])
        z, post, streams = gated_read(x, (torch.stack(weights), down, up, inject), eps=self.frame.eps, kernels=kernels)
        return self.enter(z.view(*stream.shape[:-2], stream.shape[-1]), site), Normed(post, streams, stream)

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, Normed]:
        if (found := self.read_in_one(stream, site)) is not None:
            return found
        normed = self.normed(stream, site.index)
        post = 2 * torch.sigmoid(F.linear(normed.flatten(-2), self.inject[site.index]) / self.config.streams)
        return self.enter(self.mixed(normed, site.index), site), Normed(post.to(stream.dtype))

    def write(self, stream: Tensor, y: Tensor, carry: Normed, site: Site) -> Tensor:
        y = self.leave(y, site).to(stream.dtype)
        if carry.streams is None:
            return torch.addcmul(stream, carry.post.unsqueeze(-1), y.unsqueeze(-2))
        streams = carry.streams if carry.read is stream else stream.reshape(carry.streams.shape)
        y = y.reshape(-1, y.shape[-1])
        if (kernels := usable(streams, y)) is None:
            return torch.addcmul(streams, carry.post.unsqueeze(-1), y.unsqueeze(-2)).view(stream.shape)
        return write(streams, y, None, carry.post, kernels).view(stream.shape)

    def close(self, stream: Tensor) -> Tensor:
        return self._read(self.mixed(self.normed(stream, len(self.frame.sites)), len(self.frame.sites)))
