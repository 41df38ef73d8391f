"""Delta Attention Residuals: the stream stays, and a softmax over what each branch has added is added to every read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import GPT2, Access, Card, Frame, Growth, Parts, Scheme, SchemeConfig, Site, applied
from normlab.schemes.norms import Scale, inverse_rms, precise


class DeltaAttnRes(SchemeConfig):
    """h_l = x_l + sum_i softmax_i( w_l . RMSNorm(v_i) ) v_i; x <- x + F(N(h_l)); v_0 embedding, v_i = F_i"""

    card = Card(
        family="depth-sources",
        equation="h_l = x + sum_i softmax_i( w_l . RMSNorm(v_i) ) v_i over the embedding and what each branch added; "
        "x <- x + F(N(h_l)); output N(x)",
        citation="Luo, Cai and Hu 2026, Delta Attention Residuals, arXiv 2605.18855; follows the authors' code",
        growth="(1 + i)(1 + 1/(1+i))^2 at the start: the stream and the mean of its parts",
        init="queries 0 (the authors' conversion script), key gains 1; branches as GPT-2",
        extra_parameters="(M+1)*N+2*M*d",
        traffic="2d read, 1d written; read l another 2l d read (keys and values of its sources), 1d written",
        traps=(
            "the sources are what each branch added, not the cumulative stream",
            "the first branch reads the stream alone; the output is the stream, with no read of its own",
            "zero queries do not switch it off: h is then x (1 + 1/n), which Pre-Norm does not notice",
            "the authors' model class for training from scratch leaves the queries at N(0, 0.02^2)",
            "their block variant subtracts the last block's delta from the stream, not the blocks' sum; not here",
        ),
        parent="pre_norm",
    )
    name: Literal["delta_attn_res"] = "delta_attn_res"
    key_eps: float = Field(1e-6, ge=0)
    null_source: bool = Field(False, description="one more source for each read, a learned vector that starts at zero")

    def build(self, frame: Frame) -> DeltaStream:
        return DeltaStream(self, frame)

    def counts(self, branches: int) -> list[int]:
        """Sources of each read."""
        return [(i + 1 if i else 0) + self.null_source for i in range(branches)]

    def neutral(self) -> DeltaAttnRes:
        return self  # at the start

    def growth(self, frame: Frame) -> Growth:
        counts = self.counts(len(frame.sites))
        # The first read has no source of its own beside the null one, which is zero.
        law = [(1 + i) * (1 + (1 / n if i else 0)) ** 2 for i, n in enumerate(counts)]
        return [*law, 1.0 + len(counts)]

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        mean = sum(self.counts(len(sites))) / len(sites)
        return [Access("residual merge", 2.0, 1.0), Access("read of the deltas", 2.0 * mean + 1.0, 1.0)]

    def mixing_flops(self, frame: Frame) -> float:
        return frame.dim * (4.0 * sum(self.counts(len(frame.sites))) + 2.0 * len(frame.sites))

    def zero_gradients(self, frame: Frame) -> dict[str, tuple[int, ...]]:
        return {"queries": (0,), "key_gain": (0,)}


class Deltas(NamedTuple):
    x: Tensor
    sources: tuple[Tensor, ...]  # the embedding, then what each branch added


class DeltaStream(Scheme):
    """h = x + sum_i alpha_i v_i, alpha = softmax_i( w . RMSNorm(v_i) )"""

    config: DeltaAttnRes
    init = GPT2

    def __init__(self, config: DeltaAttnRes, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        branches, d = len(frame.sites), frame.dim
        self.queries = nn.Parameter(torch.empty(branches, d))
        self.key_gain = nn.Parameter(torch.empty(branches, d))
        self.null = nn.Parameter(torch.empty(branches, d)) if config.null_source else None
        self.final = frame.new_norm()
        self.reset_parameters()
        if config.null_source:
            self.not_linear = "it adds a learned vector that no branch has made"

    def input_scales(self) -> list[float]:
        counts = self.config.counts(len(self.frame.sites))
        return [*(1 + (1 / n if i else 0) for i, n in enumerate(counts)), 1.0]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.queries.zero_()
        self.key_gain.fill_(1.0)
        if self.null is not None:
            self.null.zero_()

    def open(self, x: Tensor) -> Deltas:
        x = self._source(x)
        return Deltas(x, (x,))

    def read(self, stream: Deltas, site: Site) -> tuple[Tensor, None]:
        sources = stream.sources if site.index else ()
        if self.null is not None:
            sources = (self.null[site.index].to(stream.x.dtype).expand_as(stream.x), *sources)
        scale = self.pre[site.index]
        if sources and self.null is None and type(scale) is Scale and self._tape is None and self.enters_itself:
            # f (x + sum_i alpha_i v_i) with f = n / (n + 1) and x = sum_i v_i: at equal weights x itself, not rounded.
            return stream.x + scale.factor * self.selected(sources, site.index, less=1 / len(sources)), None
        h = stream.x + self.selected(sources, site.index) if sources else stream.x
        return self.enter(h, site), None

    def selected(self, sources: tuple[Tensor, ...], read: int, *, less: float = 0.0) -> Tensor:
        values = torch.stack(sources)
        keys = precise(values)
        keys = keys * inverse_rms(keys, self.config.key_eps) * self.key_gain[read].to(keys.dtype)
        alpha = torch.softmax((keys * self.queries[read].to(keys.dtype)).sum(-1), dim=0)
        return ((self.weigh(alpha) - less).to(values.dtype)[..., None] * values).sum(0)

    def write(self, stream: Deltas, y: Tensor, carry: None, site: Site) -> Deltas:
        v = self.leave(y, site).to(stream.x.dtype)
        return Deltas(stream.x + v, (*stream.sources, v))

    def close(self, stream: Deltas) -> Tensor:
        return applied(self.final, self._read(stream.x))

    def to_parts(self, stream: Deltas) -> Parts:
        return Parts(stream.sources, (stream.x,))

    def from_parts(self, parts: Parts, like: Deltas, site: Site | None) -> Deltas:
        return Deltas(parts.moving[0], parts.settled)
