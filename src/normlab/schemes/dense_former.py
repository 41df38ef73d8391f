"""After each layer a weighted sum of everything so far: DenseFormer (weights learned) and MUDD (weights computed)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from normlab.schemes.base import GPT2, Access, Card, Frame, Growth, Parts, Scheme, SchemeConfig, Site, applied
from normlab.schemes.depth_reads import full_precision, plain
from normlab.schemes.norms import inverse_rms, precise


class DenseFormer(SchemeConfig):
    """x_m <- sum_j alpha_mj y_j after layer m, over j <= m with j = m (mod dilation), where m divides by period"""

    card = Card(
        family="depth-sources",
        equation="x <- x + F(N(x)); after layer m: x_m <- sum_{j<=m} alpha_mj y_j, y_0 = embedding",
        citation="Pagliardini et al. 2024, DenseFormer, arXiv 2402.02622",
        growth="1 + i at the start, as pre_norm",
        init="alpha_mm = 1, all others 0; branches as GPT-2",
        extra_parameters="(M+1)*N+L*(L+3)/2",
        traffic="2d read, 1d written; after layer m another (m+1)d read",
        traps=("the sources are the layers' outputs before averaging, stored at every layer whatever the period",),
        parent="pre_norm",
    )
    name: Literal["dense_former"] = "dense_former"
    dilation: int = Field(1, ge=1, description="average every dilation-th source only")
    period: int = Field(1, ge=1, description="average after every period-th layer only")

    def build(self, frame: Frame) -> DenseFormerStream:
        return DenseFormerStream(self, frame)

    def growth(self, frame: Frame) -> Growth:
        return [1.0 + i for i in range(len(frame.sites) + 1)]

    def averages(self, sites: Sequence[Site]) -> int:
        """Sources read by all averages together."""
        layers = range(self.period, sites[-1].layers + 1, self.period)
        return sum(layer // self.dilation + 1 for layer in layers)

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        count = len(sites)
        written = sites[-1].layers // self.period / count
        return [Access("residual merge", 2.0, 1.0), Access("average", self.averages(sites) / count, written)]

    def mixing_flops(self, frame: Frame) -> float:
        return float(frame.dim * (len(frame.sites) + 2 * self.averages(frame.sites)))

    def neutral(self) -> DenseFormer:
        return self  # at the start


class Layers(NamedTuple):
    x: Tensor
    outputs: tuple[Tensor, ...]  # y_0 .. y_m


class LayerMixing(Scheme):
    """x <- x + F(N(x)); after layer m: x_m <- a mix of the layers' outputs"""

    init = GPT2
    final: nn.Module

    @abstractmethod
    def mix(self, outputs: tuple[Tensor, ...], layer: int) -> Tensor: ...

    def open(self, x: Tensor) -> Layers:
        x = self._source(x)
        return Layers(x, (x,))

    def read(self, stream: Layers, site: Site) -> tuple[Tensor, None]:
        return self.enter(stream.x, site), None

    def write(self, stream: Layers, y: Tensor, carry: None, site: Site) -> Layers:
        x = stream.x + self.leave(y, site)
        if not site.closes_layer:
            return Layers(x, stream.outputs)
        outputs = (*stream.outputs, x)
        return Layers(self.mix(outputs, site.layer), outputs)

    def to_parts(self, stream: Layers) -> Parts:
        return Parts(stream.outputs, (stream.x,))

    def from_parts(self, parts: Parts, like: Layers, site: Site | None) -> Layers:
        return Layers(parts.moving[0], parts.settled)

    def close(self, stream: Layers) -> Tensor:
        return applied(self.final, self._read(stream.x))


class DenseFormerStream(LayerMixing):
    """x <- x + F(N(x)); after layer m: x_m <- sum_j alpha_mj y_j"""

    config: DenseFormer

    def __init__(self, config: DenseFormer, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        self.averaged = [m for m in range(1, frame.sites[-1].layers + 1) if m % config.period == 0]
        self.alpha = nn.ParameterDict({str(m): torch.empty(m // config.dilation + 1) for m in self.averaged})
        self.final = frame.new_norm()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for weights in self.alpha.values():
            weights.zero_()
            weights[-1] = 1.0

    def mix(self, outputs: tuple[Tensor, ...], layer: int) -> Tensor:
        if layer not in self.averaged:
            return outputs[-1]
        chosen = outputs[layer % self.config.dilation :: self.config.dilation]
        weights = self.alpha[str(layer)].to(chosen[0].dtype)
        if plain():
            return torch.stack([weight * y for weight, y in zip(weights, chosen, strict=True)]).sum(0)
        return _Average.apply(weights, *chosen)


class Mudd(SchemeConfig):
    """x_m <- sum_j dw_mj y_j after layer m, dw_m = W_2 GELU(W_1 x / rms(x)) + b for every token"""

    card = Card(
        family="depth-sources",
        equation="x <- x + F(N(x)); after layer m: x_m <- sum_{j<=m} dw_mj y_j, dw_m = W_2 GELU(W_1 rms(y_m)) + b",
        citation="Xiao et al. 2025, MUDDFormer, arXiv 2502.12170 (one way: all of a layer reads one mix); the authors' code",
        growth="1 + i at the start, as pre_norm",
        init="W_1 = N(0, 1/d), W_2 = 0, b = 1 at the newest source and 0 elsewhere; branches as GPT-2",
        extra_parameters="(M+1)*N+(d+1)*(L*(L+3)//2)+(L+1)*(L+2)*(2*L+3)//6-1",
        traffic="2d read, 1d written; after layer m another (m+2)d read, 1d written",
        traps=(
            "the paper's own form is four-way: queries, keys, values and the residual each read their own mix, which "
            "needs four views of a read; this is its one-way form (dense_type: l)",
            "the norm under W_1 has no gain; the hidden size is the number of sources",
            "the sources are the layers' outputs before mixing",
        ),
        parent="pre_norm",
    )
    name: Literal["mudd"] = "mudd"

    def build(self, frame: Frame) -> MuddStream:
        return MuddStream(self, frame)

    def growth(self, frame: Frame) -> Growth:
        return [1.0 + i for i in range(len(frame.sites) + 1)]

    def neutral(self) -> Mudd:
        return self  # at the start

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        layers = sites[-1].layers
        read = sum(m + 2 for m in range(1, layers + 1)) / len(sites)
        return [Access("residual merge", 2.0, 1.0), Access("weights and weighted sum", read, layers / len(sites))]

    def mixing_flops(self, frame: Frame) -> float:
        sources = sum(m + 1 for m in range(1, frame.sites[-1].layers + 1))
        return float(frame.dim * (len(frame.sites) + 4 * sources))


class MuddStream(LayerMixing):
    """x <- x + F(N(x)); after layer m: x_m <- sum_j dw_mj y_j"""

    config: Mudd

    def __init__(self, config: Mudd, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        sizes = [m + 1 for m in range(1, frame.sites[-1].layers + 1)]
        self.inner = nn.ParameterList(torch.empty(n, frame.dim) for n in sizes)  # W_1
        self.outer = nn.ParameterList(torch.empty(n, n) for n in sizes)  # W_2
        self.static = nn.ParameterList(torch.empty(n) for n in sizes)  # b
        self.final = frame.new_norm()
        self.fill()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for inner, outer, static in zip(self.inner, self.outer, self.static, strict=True):
            inner.normal_(std=self.frame.dim**-0.5)
            outer.zero_()
            static.zero_()
            static[-1] = 1.0

    def mix(self, outputs: tuple[Tensor, ...], layer: int) -> Tensor:
        weights = self.weigh(self.weights(outputs[-1], layer - 1)).to(outputs[-1].dtype)
        return sum_of([weight[..., None] * y for weight, y in zip(weights.unbind(-1), outputs, strict=True)])

    def weights(self, newest: Tensor, at: int) -> Tensor:
        """dw, [..., sources], in float32 or better."""
        with full_precision(newest.device):
            normed = precise(newest) * inverse_rms(newest, self.frame.eps)
            inner, outer, static = (p[at].to(normed.dtype) for p in (self.inner, self.outer, self.static))
            return F.linear(F.gelu(F.linear(normed, inner)), outer) + static


def sum_of(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


class _Average(torch.autograd.Function):
    """x = sum_j a_j y_j:  dy_j = a_j dx,  da_j = dx . y_j. One buffer forwards; backwards, no products are kept."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *sources)
        total = weights[0] * sources[0]
        for weight, y in zip(weights[1:], sources[1:], strict=True):
            total.addcmul_(weight, y)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        weights, *sources = ctx.saved_tensors
        flat = grad.flatten()
        dots = torch.stack([torch.dot(flat, y.flatten()) for y in sources])
        return dots, *(weight * grad for weight in weights)
