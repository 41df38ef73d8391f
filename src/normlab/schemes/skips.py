"""One stream with more than one skip: nanochat's lambdas with the embedding again, and Gemma-3n's LAuReL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from normlab.schemes.base import Access, Card, Frame, Growth, Scheme, SchemeConfig, Site, applied

# nanochat's values at the first and the last layer, linear between them.
NANOCHAT = ((1.15, 1.05), (0.20, 0.05))


class LambdaSkip(SchemeConfig):
    """x <- lambda_l x + mu_l x0 before each layer, x0 = N(embedding); inside the layer x <- x + F(N(x))"""

    card = Card(
        family="skips",
        equation="before layer l: x <- lambda_l x + mu_l x0, x0 = N(embedding); x <- x + F(N(x)); "
        "output N(x), or N(x - beta x_mid)",
        citation="Karpathy 2026, nanochat (gpt.py: resid_lambdas, x0_lambdas, backout_lambda); after modded-nanogpt",
        growth="lambda > 1 makes the stream grow faster than pre_norm, by 1.1 a layer on average",
        init="lambda from 1.15 to 1.05, mu from 0.20 to 0.05, linear over the layers, beta = 0.2; branches plain",
        own_start="the stream is multiplied by 1.15 to 1.05 in each layer, and 0.20 to 0.05 of the embedding is added",
        extra_parameters="(M+2)*N+2*L",
        traffic="2d read, 1d written; before each layer another 2d read, 1d written",
        traps=(
            "not in transformers' nanochat model, which is plain Pre-Norm",
            "the scalars want their own learning rates: nanochat trains lambda at a hundredth of mu's, without "
            "weight decay on mu",
            "x_mid (backout) is the stream after layer floor(L/2) + 1, counted from 1",
            "nanochat's norms have no gain; its smear and value embeddings are not part of this scheme",
            "nanochat once left the lambdas uninitialised: they are set by init_weights, not by the constructor alone",
        ),
        parent="pre_norm",
    )
    name: Literal["lambda_skip"] = "lambda_skip"
    initial: Literal["nanochat", "plain"] = Field("nanochat", description="plain: lambda = 1, mu = 0")
    embedding_norm: bool = Field(True, description="x0 = N(embedding), not the embedding")
    backout: bool = Field(False, description="the head reads x - beta x_mid, beta learned from 0.2")

    def build(self, frame: Frame) -> LambdaSkipStream:
        return LambdaSkipStream(self, frame)

    def neutral(self) -> LambdaSkip:
        return LambdaSkip(initial="plain", embedding_norm=False)

    def start(self, layers: int) -> tuple[list[float], list[float]]:
        """lambda and mu of each layer."""
        ends = NANOCHAT if self.initial == "nanochat" else ((1.0, 1.0), (0.0, 0.0))
        reach = [layer / max(layers - 1, 1) for layer in range(layers)]
        keep, again = ([first + (last - first) * r for r in reach] for first, last in ends)
        return keep, again

    def middle(self, layers: int) -> int:
        return layers // 2 + 1

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        share = sites[-1].layers / len(sites)
        return [Access("residual merge", 2.0, 1.0), Access("lambda x + mu x0", 2.0 * share, share)]

    def mixing_flops(self, frame: Frame) -> float:
        return float(frame.dim * (len(frame.sites) + 3 * frame.sites[-1].layers))

    def growth(self, frame: Frame) -> Growth:
        """sum of squares of the coefficients that each read has over the sources."""
        layers = frame.sites[-1].layers
        keep, again = self.start(layers)
        x, middle, law = [1.0], None, []
        for site in frame.sites:
            if site.opens_layer:
                x = [keep[site.layer - 1] * c + again[site.layer - 1] * (i == 0) for i, c in enumerate(x)]
            law.append(sum(c * c for c in x))
            x = [*x, 1.0]
            if site.closes_layer and site.layer == self.middle(layers):
                middle = x
        if self.backout and middle is not None:
            x = [c - 0.2 * m for c, m in zip(x, [*middle, *[0.0] * len(x)], strict=False)]
        return [*law, sum(c * c for c in x)]


class WithStart(NamedTuple):
    """The stream, its start, and (backout) the stream after the middle layer."""

    x: Tensor
    x0: Tensor
    middle: Tensor | None = None


class LambdaSkipStream(Scheme):
    """x <- lambda_l x + mu_l x0 before layer l; x <- x + F(N(x))"""

    config: LambdaSkip

    def __init__(self, config: LambdaSkip, frame: Frame) -> None:
        super().__init__(config, frame, pre=True)
        layers = frame.sites[-1].layers
        self.embedding = frame.maybe_norm(config.embedding_norm)
        self.final = frame.new_norm()
        self.keep = nn.Parameter(torch.empty(layers))  # lambda
        self.again = nn.Parameter(torch.empty(layers))  # mu
        # A model of one or two layers has no layer after the middle one, and would subtract its own end.
        self.middle = config.middle(layers) if config.backout and config.middle(layers) < layers else None
        self.beta = nn.Parameter(torch.empty(1)) if self.middle is not None else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        keep, again = self.config.start(len(self.keep))
        self.keep.copy_(torch.tensor(keep))
        self.again.copy_(torch.tensor(again))
        if self.beta is not None:
            self.beta.fill_(0.2)

    def open(self, x: Tensor) -> WithStart:
        x = self._source(self.embedding(x))
        return WithStart(x, x)

    def read(self, stream: WithStart, site: Site) -> tuple[Tensor, Tensor]:
        x = stream.x
        if site.opens_layer:
            x = self.keep[site.layer - 1] * x + self.again[site.layer - 1] * stream.x0
        return self.enter(x, site), x

    def write(self, stream: WithStart, y: Tensor, carry: Tensor, site: Site) -> WithStart:
        x = carry + self.leave(y, site)
        return WithStart(x, stream.x0, x if site.closes_layer and site.layer == self.middle else stream.middle)

    def close(self, stream: WithStart) -> Tensor:
        x = stream.x
        if self.beta is not None and stream.middle is not None:
            x = x - self.beta * stream.middle
        return applied(self.final, self._read(x))


class Laurel(SchemeConfig):
    """attention: x <- (x + N(F(z)) + z + N(W_r W_l z)) / sqrt(2), z = N(x); FFN: x <- x + N(F(N(x)))"""

    card = Card(
        family="skips",
        equation="attention: z = N(x), x <- (x + N(F(z)) + z + N(W_r W_l z)) / sqrt(2); FFN: x <- x + N(F(N(x)))",
        citation="Menghani et al. 2024, LAuReL, arXiv 2411.07501, in the form that Gemma-3n ships (transformers, gemma3n)",
        growth="attention: ((sqrt(m) + 1)^2 + 2)/2, for z is parallel to x; FFN: + 1",
        init="W_l, W_r = N(0, 0.02^2), gains 1; branches plain",
        extra_parameters="(2*M+1)*N+L*(2*d*r+N)",
        traffic="2d read, 1d written; on attention another 2d read for z and the low-rank path",
        traps=(
            "the low-rank path reads the normed stream z, and z itself joins the sum: the normed stream is added too",
            "on attention only; the FFN is peri-norm",
            "the paper's own variants (RW, LR, PA) are other equations; their initialisation could not be read, so they "
            "are not here; AltUp, which Gemma-3n wraps around all this, is not part of the scheme",
        ),
    )
    name: Literal["laurel"] = "laurel"
    rank: int | None = Field(None, ge=1, description="of W_r W_l; Gemma-3n: 64 of 2048; null: d/32, at least 1")

    def build(self, frame: Frame) -> LaurelStream:
        return LaurelStream(self, frame)

    def symbols(self, frame: Frame) -> dict[str, int]:
        return {"r": self.rank or max(1, frame.dim // 32)}

    def traffic(self, sites: Sequence[Site]) -> list[Access]:
        share = sum(site.kind == "attention" for site in sites) / len(sites)
        return [Access("residual merge", 2.0, 1.0), Access("z and the low-rank path", 2.0 * share, 0.0)]

    def mixing_flops(self, frame: Frame) -> float:
        attention = sum(site.kind == "attention" for site in frame.sites)
        return float(frame.dim * (len(frame.sites) + attention * (3 + 4 * self.symbols(frame)["r"])))

    def growth(self, frame: Frame) -> Growth:
        law, m = [1.0], 1.0
        for site in frame.sites:
            m = ((math.sqrt(m) + 1) ** 2 + 2) / 2 if site.kind == "attention" else m + 1
            law.append(m)
        return list(law)


class Entered(NamedTuple):
    z: Tensor


class LaurelStream(Scheme):
    """x <- (x + N(F(z)) + z + N(W_r W_l z)) / sqrt(2) on attention, x <- x + N(F(N(x))) on the FFN"""

    not_linear = "it adds a map and two norms of the stream itself"
    config: Laurel

    def __init__(self, config: Laurel, frame: Frame) -> None:
        super().__init__(config, frame, pre=True, res=True)
        layers, d, rank = frame.sites[-1].layers, frame.dim, config.symbols(frame)["r"]
        self.left = nn.Parameter(torch.empty(layers, rank, d))
        self.right = nn.Parameter(torch.empty(layers, d, rank))
        self.low_rank_norm = nn.ModuleList(frame.new_norm() for _ in range(layers))
        self.final = frame.new_norm()
        self.fill()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.left.normal_(std=self.frame.init_std)
        self.right.normal_(std=self.frame.init_std)

    def open(self, x: Tensor) -> Tensor:
        return self._source(x)

    def read(self, stream: Tensor, site: Site) -> tuple[Tensor, Entered | None]:
        z = self.enter(stream, site)
        return z, Entered(z) if site.kind == "attention" else None

    def leave(self, y: Tensor, site: Site) -> Tensor:
        return self._source(y)  # all that joins the stream, already normed

    def write(self, stream: Tensor, y: Tensor, carry: Entered | None, site: Site) -> Tensor:
        y, half = self.res[site.index](y), math.sqrt(0.5)
        if carry is None:
            return stream + self.leave(y, site)
        at = site.layer - 1
        low_rank = self.low_rank_norm[at](F.linear(F.linear(carry.z, self.left[at]), self.right[at]))
        return half * stream + self.leave(half * (y + carry.z + low_rank), site)

    def close(self, stream: Tensor) -> Tensor:
        return applied(self.final, self._read(stream))
