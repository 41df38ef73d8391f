"""Two paths side by side: ResiDual, SiameseNorm, and Post-LN with the B2T shortcut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor, nn

from normlab.schemes.base import XAVIER, Access, Card, Frame, Growth, Scheme, SchemeConfig, Site


class TwoStreams(NamedTuple):
    """Two streams; which is which is said by the scheme."""

    first: Tensor
    second: Tensor


class ResiDual(SchemeConfig):
    """x <- N(x + f), d <- d + f with f = F(x); output x + N(d)"""

    card = Card(
        family="two-stream",
        equation="x <- N(x + F(x)), d <- d + F(x); output x + N(d)",
        citation="Xie et al. 2023, ResiDual, arXiv 2304.14802",
        growth="constant for what branches read; the second stream grows like 1 + i",
        init="Xavier normal",
        extra_parameters="(M+1)*N",
        traffic="3d read, 2d written",
        traps=("both streams start at the embedding", "the head sees the sum of both, with no norm after it"),
    )
    name: Literal["resi_dual"] = "resi_dual"

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        return [Access("merge of both streams", 3.0, 2.0)]

    def mixing_flops(self, frame: Frame) -> float:
        return 2.0 * len(frame.sites) * frame.dim

    def build(self, frame: Frame) -> ResiDualStream:
        return ResiDualStream(self, frame)

    def growth(self, frame: Frame) -> Growth:
        return [1.0] * len(frame.sites) + [(0.0, 4.0)]


class ResiDualStream(Scheme):
    """x <- N(x + f), d <- d + f with f = F(x); output x + N(d)"""

    not_linear = "it normalises the stream that branches read"
    init = XAVIER

    def __init__(self, config: ResiDual, frame: Frame) -> None:
        super().__init__(config, frame, pre=False)
        self.out = nn.ModuleList(frame.new_norm() for _ in frame.sites)
        self.final = frame.new_norm()

    def open(self, x: Tensor) -> TwoStreams:
        return TwoStreams(x, x)

    def read(self, stream: TwoStreams, site: Site) -> tuple[Tensor, None]:
        return self.enter(stream.first, site), None

    def write(self, stream: TwoStreams, y: Tensor, carry: None, site: Site) -> TwoStreams:
        f = self.leave(y, site)
        return TwoStreams(self.out[site.index](stream.first + f), stream.second + f)

    def close(self, stream: TwoStreams) -> Tensor:
        return self._read(stream.first + self.final(stream.second))


class SiameseNorm(SchemeConfig):
    """X <- N_p(X); z = N_in(X + N_q(Y)); o = F(z); X += o / sqrt(2 l); Y += o; output N(N(X) + N(Y))"""

    card = Card(
        family="two-stream",
        equation="X <- N_p(X); z = N_in(X + N_q(Y)); o = F(z); X += o/sqrt(2l); Y += o; output N(N(X) + N(Y))",
        citation="Li et al. 2026, SiameseNorm, arXiv 2602.08064; follows the authors' DeiT code",
        growth="bounded: two unit streams are read, so between 2 and 4",
        extra_parameters="(3*M+3)*N",
        traffic="4d read, 2d written",
        traps=(
            "l is the 1-based layer, for both of its branches, and scales the Post-Norm stream X only",
            "the authors' language-model file and summaries of the paper differ in where X is normalised",
        ),
    )
    name: Literal["siamese_norm"] = "siamese_norm"

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        """A branch's input is made of both streams: one d read more than where it is the stream itself."""
        return [Access("read of the second stream", 1.0, 0.0), Access("merge of both streams", 3.0, 2.0)]

    def mixing_flops(self, frame: Frame) -> float:
        return 4.0 * len(frame.sites) * frame.dim

    def build(self, frame: Frame) -> SiameseNormStream:
        return SiameseNormStream(self, frame)

    def growth(self, frame: Frame) -> Growth:
        return [(2.0, 4.0)] * (len(frame.sites) + 1)


class SiameseNormStream(Scheme):
    """X <- N_p(X); z = N_in(X + N_q(Y)); o = F(z); X += o / sqrt(2 l); Y += o; output N(N(X) + N(Y))"""

    not_linear = "it normalises both streams before they meet"

    def __init__(self, config: SiameseNorm, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        self.norm_x = nn.ModuleList(frame.new_norm() for _ in range(len(frame.sites) + 1))  # N_p, and the output's
        self.norm_y = nn.ModuleList(frame.new_norm() for _ in range(len(frame.sites) + 1))  # N_q, and the output's
        self.final = frame.new_norm()

    def open(self, x: Tensor) -> TwoStreams:
        return TwoStreams(x, x)

    def read(self, stream: TwoStreams, site: Site) -> tuple[Tensor, Tensor]:
        x = self.norm_x[site.index](stream.first)
        return self.enter(x + self.norm_y[site.index](stream.second), site), x

    def write(self, stream: TwoStreams, y: Tensor, carry: Tensor, site: Site) -> TwoStreams:
        o = self.leave(y, site)
        return TwoStreams(carry + o * (2 * site.layer) ** -0.5, stream.second + o)

    def close(self, stream: TwoStreams) -> Tensor:
        return self.final(self._read(self.norm_x[-1](stream.first) + self.norm_y[-1](stream.second)))


class BottomToTop(SchemeConfig):
    """Post-LN whose last branch of each layer adds the layer's input again: x <- N(x_in + h + F(h))"""

    card = Card(
        family="two-stream",
        equation="h <- N(x + Attention(x)); x <- N(x + h + FFN(h))",
        citation="Takase et al. 2022, B2T Connection, arXiv 2206.00330",
        growth="constant",
        init="Xavier normal",
        extra_parameters="M*N",
        traffic="2d read, 1d written; one more d read by a layer's last branch",
        traps=("the shortcut skips the layer's first norm, not its last",),
    )
    name: Literal["b2t"] = "b2t"

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        again = sum(site.closes_layer for site in sites) / len(sites)
        return [Access("residual merge", 2.0, 1.0), Access("the layer's input again", again, 0.0)]

    def mixing_flops(self, frame: Frame) -> float:
        return float(frame.dim * sum(1 + site.closes_layer for site in frame.sites))

    def build(self, frame: Frame) -> BottomToTopStream:
        return BottomToTopStream(self, frame)

    def growth(self, frame: Frame) -> Growth:
        return [1.0] * (len(frame.sites) + 1)


class BottomToTopStream(Scheme):
    """h <- N(x + Attention(x)); x <- N(x + h + FFN(h)). The pair is (h, x)."""

    not_linear = "it normalises the stream itself"
    init = XAVIER

    def __init__(self, config: BottomToTop, frame: Frame) -> None:
        super().__init__(config, frame, pre=False)
        self.out = nn.ModuleList(frame.new_norm() for _ in frame.sites)

    def open(self, x: Tensor) -> TwoStreams:
        return TwoStreams(x, x)

    def read(self, stream: TwoStreams, site: Site) -> tuple[Tensor, None]:
        return self.enter(stream.first, site), None

    def write(self, stream: TwoStreams, y: Tensor, carry: None, site: Site) -> TwoStreams:
        total = stream.first + self.leave(y, site)
        if not site.closes_layer:
            return TwoStreams(self.out[site.index](total), stream.second)
        x = self.out[site.index](total + stream.second)
        return TwoStreams(x, x)

    def close(self, stream: TwoStreams) -> Tensor:
        return self._read(stream.first)
