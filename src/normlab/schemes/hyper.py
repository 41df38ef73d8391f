"""n parallel streams with learned mixing: what all of them share, and hyper-connections (static and dynamic).

mHC is in mhc.py; streams that are gated and not mixed are in gated.py.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.errors import ConfigError
from normlab.schemes.base import GPT2, Access, Card, Frame, Growth, Scheme, SchemeConfig, Site, applied
from normlab.schemes.depth_kernels import Kernels, usable
from normlab.schemes.depth_reads import Norm, full_precision, keys
from normlab.schemes.norms import RMSNorm, precise, traced, watched
from normlab.schemes.ops.depth import fuses
from normlab.schemes.ops.streams import Slices, kernels_for, read, tanh_read, write
from normlab.schemes.ops.streams_device import device_read, device_write

Matrix = list[list[float]]


def growth_law(mixes: list[tuple[list[float], Matrix, list[float]]], close: list[float]) -> Growth:
    """sum_i M[l,i]^2 for X <- R X + w (x) F(p X), all streams equal to the embedding at the start."""
    n = len(close)
    streams = [[1.0] for _ in range(n)]  # per stream, its coefficients over the sources
    law = []
    for p, r, w in mixes:
        law.append(sum(c * c for c in _combine(p, streams)))
        streams = [[*_combine(r[k], streams), w[k]] for k in range(n)]
    return [*law, sum(c * c for c in _combine(close, streams))]


def stream_traffic(n: int, *, dynamic: bool = True) -> list[Access]:
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
        return stream_traffic(self.streams, dynamic=self.dynamic)

    def mixing_flops(self, frame: Frame) -> float:
        n = self.streams
        products = n * (n + 1) + n + (n * (n + 2) if self.dynamic else 0)  # A^T H, beta (x) F, H W
        return 2.0 * len(frame.sites) * frame.dim * products

    def build(self, frame: Frame) -> HyperConnectionsStream:
        return HyperConnectionsStream(self, frame)

    def neutral(self) -> HyperConnections:
        return self  # at the start

    def growth(self, frame: Frame) -> Growth:
        n = self.streams
        eye = [[float(i == j) for j in range(n)] for i in range(n)]
        return growth_law([(eye[site.index % n], eye, [1.0] * n) for site in frame.sites], [1.0] * n)


class MixingWeights(NamedTuple):
    """What a read leaves for its write, H <- res H + post (x) y. The streams are mixed there: nothing lies between."""

    res: Tensor | None  # [..., n, n]; none: the identity
    post: Tensor  # [..., n]
    streams: Tensor | None = None  # [tokens, n, d], as the read in one piece hands them on


def read_streams(streams: Tensor, weights: Tensor) -> Tensor:
    """sum_k weights_k H_k: [..., n, d], [..., n] (or [n]) -> [..., d], saving nothing beside its arguments."""
    weights = weights.expand(streams.shape[:-1])
    return (weights.unsqueeze(-2) @ streams).squeeze(-2)


def write_streams(streams: Tensor, y: Tensor, weights: MixingWeights) -> Tensor:
    """res H + post (x) y in one buffer, saving nothing beside its arguments."""
    n, d = streams.shape[-2:]
    if weights.res is None:
        return torch.addcmul(streams, weights.post.unsqueeze(-1), y.unsqueeze(-2).to(streams.dtype))
    post = weights.post.expand(streams.shape[:-1]).reshape(-1, n, 1)  # static weights are the same for every token
    res = weights.res.expand(*streams.shape[:-1], n).reshape(-1, n, n)
    added = torch.bmm(post, y.reshape(-1, 1, d))
    return torch.baddbmm(added, res, streams.reshape(-1, n, d)).view(streams.shape)


def normed_product(x: Tensor, matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm(x) matrix, in float32 or better, without materialising the normalised copy: 1/rms factors out. And x."""
    with full_precision(x.device):
        found, rows = keys(x.reshape(-1, x.shape[-1]), precise(matrix).t(), eps)
    return found.view(*x.shape[:-1], found.shape[-1]), rows.view(x.shape)


class Streams(Scheme):
    """n streams X in [..., n, d]: X <- res X + post (x) F(N(pre . X)), with the coefficients of a subclass."""

    init = GPT2
    unmixed = False  # res is the identity

    def __init__(self, config: SchemeConfig, frame: Frame, *, streams: int, closes_at: float) -> None:
        if streams > frame.dim:
            raise ConfigError(
                f"scheme.streams: {streams} streams are more than the width {frame.dim} has channels; give "
                f"{frame.dim} or fewer (4 is usual)"
            )
        super().__init__(config, frame, pre=True)
        self.streams = streams
        self.closes_at = closes_at  # sum of the head's weights at the start: n for a sum of streams (input_scales)
        self.final = frame.new_norm(eps=frame.eps * closes_at**2)
        self.slices = Slices()

    def coefficients(self, streams: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """pre [..., n], post [..., n] and res [..., n, n], in float32 or better."""
        pre, post, res = self.gates(self.product(streams, site)[0], site)
        if res is None:
            return pre, post, torch.eye(self.streams, dtype=pre.dtype, device=pre.device)
        return pre, post, res

    @abstractmethod
    def product(self, streams: Tensor, site: Site) -> tuple[Tensor | None, Tensor]:
        """What the coefficients depend on, if on anything, and the streams for whoever comes next."""

    @abstractmethod
    def gates(self, logits: Tensor | None, site: Site) -> tuple[Tensor, Tensor, Tensor | None]:
        """pre, post and res (None: the streams are not mixed) from that product, in float32 or better."""

    def open(self, x: Tensor) -> Tensor:
        return self._source(x).unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1])

    def in_one(self, x: Tensor, site: Site, norm: RMSNorm, kernels: Kernels) -> tuple[Tensor, ...] | None:
        """Coefficients, read and norm of x [tokens, n, d] in one piece: y, the streams, post, res. None: not for these."""
        return None

    def read_in_one(self, stream: Tensor, site: Site) -> tuple[Tensor, MixingWeights] | None:
        """The read as one function (ops/streams.py), where it has the kernels and nobody looks inside."""
        norm = self.pre[site.index]
        if self._tape is not None or not self._own_coefficients or (kernels := kernels_for(norm, stream)) is None:
            return None
        assert isinstance(norm, RMSNorm)
        with full_precision(stream.device):
            found = self.in_one(stream.reshape(-1, *stream.shape[-2:]), site, norm, kernels)
        if found is None:
            return None
        y, streams, post, *res = found
        return y.view(*stream.shape[:-2], stream.shape[-1]), MixingWeights(res[0] if res else None, post, streams)

    @property
    def _own_coefficients(self) -> bool:
        """Are the coefficients those that `in_one` computes, and not somebody's own, and does nobody look at the read?"""
        if self.__dict__.keys() & {"coefficients", "gates", "product", "enter"} or type(self).enter is not Scheme.enter:
            return False
        names = ("coefficients", "gates", "product", "in_one")
        first = next(c for c in type(self).__mro__ if any(name in c.__dict__ for name in names))
        return "coefficients" not in first.__dict__ and "in_one" in first.__dict__

    def slice(self, name: str, site: Site) -> Tensor:
        """The site's part of a parameter [branches, ...]."""
        parameter: Tensor = getattr(self, name)
        return parameter[site.index] if traced() else self.slices.of(name, parameter, site.index)

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, MixingWeights]:
        if (found := self.read_in_one(stream, site)) is not None:
            return found
        if self._own_coefficients and (norm := self._norm_after(stream, site)) is not None:
            return self._read_in_passes(stream, site, norm)
        pre, post, res = (self.weigh(c).to(stream.dtype) for c in self.coefficients(stream, site))
        return self.enter(read_streams(stream, pre), site), MixingWeights(None if self.unmixed else res, post)

    def _read_in_passes(self, stream: Tensor, site: Site, norm: Norm) -> tuple[Tensor, MixingWeights]:
        """On a device: product, gates, N(pre . X); each pass hands the streams on, and the last one to the write."""
        shape, n = stream.shape, self.streams
        logits, streams = self.product(stream, site)
        pre, post, res = self.gates(logits, site)
        y, streams = device_read(streams.reshape(-1, *shape[-2:]), pre.expand(shape[:-1]).reshape(-1, n), norm)
        res = None if res is None else res.expand(*shape[:-1], n).reshape(-1, n, n)
        carry = MixingWeights(res, post.expand(shape[:-1]).reshape(-1, n), streams)
        return y.view(*shape[:-2], shape[-1]), carry

    def _norm_after(self, stream: Tensor, site: Site) -> Norm | None:
        """The branch's norm, if a device's read may take it along: a plain RMSNorm that nobody watches."""
        norm = self.pre[site.index]
        if not fuses(stream) or type(norm) is not RMSNorm or watched(norm) or traced():
            return None
        alone = self._tape is None and self.enters_itself
        return Norm(norm.weight, norm.eps) if alone and norm.weight.dtype == stream.dtype else None

    def write(self, stream: Tensor, y: Tensor, carry: MixingWeights, site: Site) -> Tensor:
        y = self.leave(y, site)
        if carry.streams is None:
            return write_streams(stream, y, carry)
        same = carry.streams.numel() == stream.numel() and _start_of(carry.streams) == _start_of(stream)
        streams = carry.streams if same else stream.reshape(carry.streams.shape)
        y = y.reshape(-1, y.shape[-1]).to(stream.dtype)
        if fuses(streams):
            return device_write(streams, y, carry.res, carry.post).view(stream.shape)
        if (kernels := usable(streams, y)) is None:
            return write_streams(streams, y, carry).view(stream.shape)
        return write(streams, y, carry.res, carry.post, kernels).view(stream.shape)

    def close(self, stream: Tensor) -> Tensor:
        return applied(self.final, self._read(stream.sum(-2)))


class HyperConnectionsStream(Streams):
    """[h; H'] = A^T H, H <- H' + beta (x) F(N(h)). The stream H is [..., n, d]."""

    config: HyperConnections

    def __init__(self, config: HyperConnections, frame: Frame) -> None:
        super().__init__(config, frame, streams=config.streams, closes_at=float(config.streams))
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

    def in_one(self, x: Tensor, site: Site, norm: RMSNorm, kernels: Kernels) -> tuple[Tensor, ...]:
        if self.config.dynamic:
            parameters = tuple(self.slice(name, site) for name in ("gain", "project", "mix", "beta", "scale"))
            return tanh_read(x, parameters, norm=norm, norm_eps=self.frame.eps, kernels=kernels)
        mix = self.slice("mix", site)
        return *read(x, mix[:, 0], norm, kernels), self.slice("beta", site), mix[:, 1:].t()

    def product(self, streams: Tensor, site: Site) -> tuple[Tensor | None, Tensor]:
        """N(H) W, the gain folded into W"""
        if not self.config.dynamic:
            return None, streams
        return normed_product(streams, self.slice("gain", site)[:, None] * self.slice("project", site), self.frame.eps)

    def gates(self, logits: Tensor | None, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """[A | beta] + s tanh(.), the columns of [A | beta] side by side: few operations, each on a few numbers"""
        n, every = self.config.streams, torch.cat([self.slice("mix", site), self.slice("beta", site)[:, None]], dim=1)
        if logits is not None:
            of_mix, of_beta = self.slice("scale", site).split(1)
            every = torch.addcmul(every, torch.tanh(logits), torch.cat([of_mix.expand(n + 1), of_beta]))
        pre, res, post = every.split([1, n, 1], dim=-1)
        return pre.squeeze(-1), post.squeeze(-1), res.transpose(-1, -2)


def _start_of(x: Tensor) -> tuple[int, int]:
    """Where a tensor lies; on a meta device, where nothing does, whose memory it would be."""
    if x.device.type == "meta":
        return x.untyped_storage()._cdata, int(x.storage_offset())
    return x.data_ptr(), 0


class StreamHead(nn.Module):
    """sum_k (sigmoid(alpha RMSNorm(vec X) W + b)_k + eps) X_k: the learned read of the head.

    At the start W = 0 and b = -ln(n - 1): the mean of the streams, as HY-V4 begins.
    """

    def __init__(self, streams: int, frame: Frame, *, alpha: float, eps: float, std: float = 0.0) -> None:
        super().__init__()
        self.streams, self.frame, self.initial_alpha, self.eps, self.std = streams, frame, alpha, eps, std
        self.project = nn.Parameter(torch.empty(streams * frame.dim, streams))
        self.bias = nn.Parameter(torch.empty(streams))
        self.alpha = nn.Parameter(torch.empty(1))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.project, std=self.std) if self.std else nn.init.zeros_(self.project)
        nn.init.constant_(self.bias, mean_bias(self.streams))
        nn.init.constant_(self.alpha, self.initial_alpha)

    def forward(self, streams: Tensor) -> Tensor:
        """The weights [..., n], in float32 or better."""
        logits, _ = normed_product(streams.flatten(-2), self.project, self.frame.eps)
        return torch.sigmoid(logits * self.alpha + self.bias) + self.eps


def mean_bias(n: int) -> float:
    """The logit whose sigmoid is 1/n (n = 1: 0, as shipped)."""
    return -math.log(max(n - 1, 1))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
