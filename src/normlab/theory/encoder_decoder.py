"""Gradients of W1 and W2 by layer at initialisation: encoder, decoder, and encoder-decoder, for every scheme of the registry.

The figure behind "Post-LN's gradients decay towards the input" (Xiong et al. 2020, arXiv 2002.04745) is W1 of an
encoder-decoder with 6 and 6 layers. A decoder layer has three branches: causal self-attention, attention to the encoder's
output, FFN.

Here: Xavier matrices, several heads, a ReLU FFN four times as wide, LayerNorm, Gaussian embeddings of unit variance,
cross-entropy of random targets at every position. Gradients of W1 (before the ReLU) and W2 (behind it), all in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from normlab.config import Config
from normlab.errors import ConfigError
from normlab.schemes import Frame, Scheme, SchemeConfig, Site, make_sites, parse_scheme


class EncoderDecoderSetting(Config):
    """Layers of each half (one of them may be 0), width, tokens."""

    what: ClassVar[str] = "encoder-decoder setting"

    encoder: Annotated[int, Field(ge=0)] = 6
    decoder: Annotated[int, Field(ge=0)] = 6
    dim: Annotated[int, Field(ge=8)] = 64
    heads: Annotated[int, Field(ge=1)] = 4
    tokens: Annotated[int, Field(ge=2)] = 16
    batch: Annotated[int, Field(ge=1)] = 2
    vocabulary: Annotated[int, Field(ge=2)] = 64

    @property
    def name(self) -> str:
        if self.encoder and self.decoder:
            return f"encoder-decoder {self.encoder}-{self.decoder}"
        return f"encoder {self.encoder}" if self.encoder else f"decoder {self.decoder}"


@dataclass(frozen=True)
class FeedForwardGradients:
    """Frobenius norms, first layer first; empty for a half that is not there."""

    encoder_up: tuple[float, ...]
    encoder_down: tuple[float, ...]
    decoder_up: tuple[float, ...]
    decoder_down: tuple[float, ...]

    @property
    def up(self) -> tuple[float, ...]:
        """W1 of the half that bears the loss."""
        return self.decoder_up or self.encoder_up

    @property
    def down(self) -> tuple[float, ...]:
        """W2 of the half that bears the loss."""
        return self.decoder_down or self.encoder_down


class MultiHead(nn.Module):
    """Attention of x to y, with four matrices d x d."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def split(z: Tensor) -> Tensor:
            return z.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        seen = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(y)), split(self.value(y)), is_causal=self.causal
        )
        out: Tensor = self.out(seen.transpose(-2, -3).flatten(-2))
        return out


class ReluFeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.relu(self.up(x)))
        return out


class HalfStack(nn.Module):
    """Layers of one half, driven by the scheme's verbs: self-attention, attention to `memory` where asked, FFN."""

    def __init__(self, scheme: SchemeConfig, setting: EncoderDecoderSetting, layers: int, *, cross: bool, causal: bool):
        super().__init__()
        sites = make_sites(layers, ("attention", "attention", "ffn") if cross else ("attention", "ffn"))
        self.sites: tuple[Site, ...] = sites
        self.scheme: Scheme = scheme.build(Frame(setting.dim, sites, norm="layernorm", eps=1e-12))
        per_layer = len(sites) // max(1, layers)
        self.crosses = [cross and site.index % per_layer == 1 for site in sites]
        self.branches = nn.ModuleList(
            ReluFeedForward(setting.dim)
            if site.kind == "ffn"
            else MultiHead(setting.dim, setting.heads, causal=causal and not crosses)
            for site, crosses in zip(sites, self.crosses, strict=True)
        )

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        stream = self.scheme.open(x)
        for site, branch, crosses in zip(self.sites, self.branches, self.crosses, strict=True):
            y, carry = self.scheme.read(stream, site)
            if isinstance(branch, MultiHead):
                out = branch(y, memory if crosses else y)
            else:
                out = branch(y)
            stream = self.scheme.write(stream, out, carry, site)
        return self.scheme.close(stream)

    def matrices(self) -> tuple[list[Tensor], list[Tensor]]:
        ffns = [branch for branch in self.branches if isinstance(branch, ReluFeedForward)]
        return [ffn.up.weight for ffn in ffns], [ffn.down.weight for ffn in ffns]


class EncoderDecoder(nn.Module):
    """Both halves and a read-out; a half of 0 layers is left out."""

    def __init__(self, scheme: SchemeConfig, setting: EncoderDecoderSetting, generator: torch.Generator) -> None:
        super().__init__()
        if setting.encoder + setting.decoder == 0:
            raise ConfigError("an encoder-decoder needs a layer or more in one of its halves")
        self.setting = setting
        both = setting.encoder > 0 and setting.decoder > 0
        self.encoder = (
            HalfStack(scheme, setting, setting.encoder, cross=False, causal=False) if setting.encoder else None
        )
        self.decoder = HalfStack(scheme, setting, setting.decoder, cross=both, causal=True) if setting.decoder else None
        self.head = nn.Linear(setting.dim, setting.vocabulary, bias=False)
        self.double()
        self._fill(generator)

    @torch.no_grad()
    def _fill(self, generator: torch.Generator) -> None:
        """Xavier, whatever the scheme's own start: only the placement of norms differs between schemes."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                out, into = module.weight.shape
                module.weight.normal_(std=math.sqrt(2 / (into + out)), generator=generator)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits at every position of the half that bears the loss."""
        if self.encoder is None:
            assert self.decoder is not None
            x = self.decoder(target)
        else:
            x = self.encoder(source)
            if self.decoder is not None:
                x = self.decoder(target, x)
        logits: Tensor = self.head(x)
        return logits


def feed_forward_gradients(
    scheme: str | SchemeConfig, setting: EncoderDecoderSetting | None = None, *, seed: int = 0
) -> FeedForwardGradients:
    """One random network, one random batch."""
    setting = setting or EncoderDecoderSetting()
    generator = torch.Generator().manual_seed(seed)
    model = EncoderDecoder(parse_scheme(scheme), setting, generator)
    shape = (setting.batch, setting.tokens, setting.dim)
    source = torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    answers = torch.randint(setting.vocabulary, shape[:2], generator=generator)
    loss = F.cross_entropy(model(source, target).flatten(0, 1), answers.flatten())
    lists = [
        part for half in (model.encoder, model.decoder) for part in (half.matrices() if half is not None else ([], []))
    ]
    norms = [_norms(loss, weights) for weights in lists]
    return FeedForwardGradients(*norms)


def _norms(loss: Tensor, weights: Sequence[Tensor]) -> tuple[float, ...]:
    if not weights:
        return ()
    return tuple(float(g.norm()) for g in torch.autograd.grad(loss, weights, retain_graph=True))
