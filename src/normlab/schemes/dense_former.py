"""DenseFormer: a depth-weighted average of everything so far, after each layer."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import Card, Frame, Scheme, SchemeConfig, Site
from normlab.schemes.rows import GPT2


class DenseFormer(SchemeConfig):
    """x_m <- sum_j alpha_mj y_j after layer m, over j <= m with j = m (mod dilation), where m divides by period"""

    card = Card(
        family="depth sources",
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

    def growth(self, frame: Frame) -> list[Any]:
        return [1.0 + i for i in range(len(frame.sites) + 1)]

    def neutral(self) -> DenseFormer:
        return DenseFormer()


class Layers(NamedTuple):
    x: Tensor
    outputs: tuple[Tensor, ...]  # y_0 .. y_m


class DenseFormerStream(Scheme):
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
        return Layers(self.average(outputs, site.layer) if str(site.layer) in self.alpha else x, outputs)

    def average(self, outputs: tuple[Tensor, ...], layer: int) -> Tensor:
        chosen = outputs[layer % self.config.dilation :: self.config.dilation]
        weights = self.alpha[str(layer)].to(chosen[0].dtype)
        total = weights[0] * chosen[0]
        for weight, y in zip(weights[1:], chosen[1:], strict=True):
            total = total + weight * y
        return total

    def close(self, stream: Layers) -> Tensor:
        return self.final(self._read(stream.x))

    def init_branch_(self, branch: Any, site: Site) -> None:
        GPT2.fill_(branch, site, options=self.config, std=self.frame.init_std)
