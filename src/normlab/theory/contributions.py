"""How much of the stream each layer is, at initialisation, by depth.

In Pre-Norm branches of unit size add to a stream of mean square 1 + O(l), so layer l is about 1/l of the squared norm and
1/sqrt(l) of the norm: a tenth at layer 96. In Post-Norm the stream is brought back to 1 each time, so every layer stays
large. The law is that of branches of unit size. With GPT-2's initialisation (std 0.02, output projections smaller still)
branches are small beside the embedding, and little grows until training makes them larger: `init` says which is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from normlab.config import Config
from normlab.model import Transformer, TransformerConfig
from normlab.observe.portrait import Walk, rms, walk
from normlab.results import Plain, as_row
from normlab.schemes import SchemeConfig, label, parse_scheme
from normlab.stats import power_law
from normlab.theory.mean_field import fill_paper_

Init = Literal["paper", "gpt2"]
BEHIND = 8
"""Exponents are fitted from this layer on: before it the embedding is a good part of the stream."""


class ContributionSetting(Config):
    """One network at initialisation."""

    what: ClassVar[str] = "contribution setting"

    depth: Annotated[int, Field(ge=1)] = 96
    dim: Annotated[int, Field(ge=8)] = 128
    tokens: Annotated[int, Field(ge=2)] = 16
    init: Init = "paper"
    seed: int = 0


@dataclass(frozen=True)
class Contributions:
    """By layer from 1: rms of the stream behind it, and the layer's share of it in norm.

    A layer's share is the root of the sum over its two branches of (size of what it adds / size of the sum)^2; a share of the
    squared norm is its square.
    """

    scheme: str
    init: Init
    stream: list[float]
    share: list[float]

    @property
    def layers(self) -> list[int]:
        return list(range(1, len(self.share) + 1))

    def exponent(self, values: list[float]) -> float:
        """p of values ~ layer^p, behind the first layers where there are enough."""
        start = BEHIND if len(values) >= 2 * BEHIND else 1
        return power_law(self.layers[start - 1 :], values[start - 1 :])

    @property
    def stream_exponent(self) -> float:
        return self.exponent(self.stream)

    @property
    def share_exponent(self) -> float:
        return self.exponent(self.share)

    def to_dict(self) -> dict[str, Plain]:
        more = {"stream_exponent": self.stream_exponent, "share_exponent": self.share_exponent}
        return {**as_row(self), **more, "last_share": self.share[-1]}


def network(scheme: SchemeConfig, setting: ContributionSetting) -> Transformer:
    """`paper`: the network of the mean-field paper, with embeddings of unit size. `gpt2`: the start of the scheme's
    authors, with 0.02 where they name no size."""
    vocabulary, width = 256, setting.dim
    torch.manual_seed(setting.seed)
    if setting.init == "gpt2":
        heads = max(1, width // 32)
        return Transformer(
            TransformerConfig(
                vocab_size=vocabulary, dim=width, depth=setting.depth, heads=heads, scheme=scheme, start="authors"
            )
        )
    config = TransformerConfig(
        vocab_size=vocabulary, dim=width, depth=setting.depth, heads=1, scheme=scheme, norm="layernorm", positions="nope",
        ffn="relu", ffn_dim=width, causal=False, eps=1e-12, tie_embeddings=False, start="authors",
        init_std=width**-0.5, embedding_scale=width**0.5,
    )  # fmt: skip
    model = Transformer(config)
    fill_paper_(model)
    return model


@torch.no_grad()
def contributions(scheme: str | SchemeConfig, setting: ContributionSetting | None = None) -> Contributions:
    """One network on random tokens."""
    setting = setting or ContributionSetting()
    config = parse_scheme(scheme)
    model = network(config, setting).double()
    generator = torch.Generator().manual_seed(setting.seed)
    tokens = torch.randint(256, (2, setting.tokens), generator=generator)
    seen = walk(model, lambda: model.features(tokens))
    shares = _branch_shares(seen)
    pairs = zip(shares[::2], shares[1::2], strict=True)
    return Contributions(
        label(config), setting.init, [rms(h) for h in seen.reads[2::2]], [(a * a + b * b) ** 0.5 for a, b in pairs]
    )


def _branch_shares(seen: Walk) -> list[float]:
    """|v| / |what it is part of|: the sum before the norm behind it where there is one, else the next read."""
    added = seen.added
    assert added is not None
    wholes: tuple[Tensor, ...] = seen.summed if len(seen.summed) == len(added) else seen.reads[1:]
    return [rms(v) / rms(whole) for v, whole in zip(added, wholes, strict=True)]
