"""`BackboneConfig`: an architecture of Hugging Face's and a scheme, in the place of a `TransformerConfig`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from pydantic import JsonValue, field_validator

from normlab.config import Config
from normlab.errors import UnsupportedError, require
from normlab.model.config import AnyScheme
from normlab.schemes import Frame, Site
from normlab.surgery.anatomy import anatomy
from normlab.surgery.backbone.architecture import Values, config_of, small
from normlab.surgery.splice import check

POSITIONS = ("max_position_embeddings", "n_positions", "model_max_length")


@dataclass(frozen=True)
class Shape:
    """What an architecture is, without weights."""

    frame: Frame
    vocab_size: int
    heads: int
    longest: int | None
    tied: bool


class BackboneConfig(Config):
    """A random model of this architecture with this scheme swapped in, as the scheme's authors start it."""

    what: ClassVar[str] = "backbone"

    architecture: dict[str, JsonValue]
    scheme: AnyScheme

    @field_validator("architecture")
    @classmethod
    def _named(cls, values: Values) -> Values:
        if not isinstance(values.get("model_type"), str):
            raise ValueError("it names no model_type, so it is no config of a Hugging Face model")
        return values

    @classmethod
    def sized(
        cls, source: str, scheme: AnyScheme, *, vocab_size: int, dim: int, depth: int, heads: int
    ) -> BackboneConfig:
        """Of a folder, a config.json or a shipped name, at these sizes."""
        values = json.loads(small(source, vocab_size=vocab_size, dim=dim, depth=depth, heads=heads))
        return cls(architecture=values, scheme=scheme)

    @property
    def name(self) -> str:
        """llama, kimi_linear, ..."""
        return str(self.architecture["model_type"])

    @property
    def shape(self) -> Shape:
        return _shape(json.dumps(self.architecture, sort_keys=True))

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    @property
    def dim(self) -> int:
        return self.shape.frame.dim

    @property
    def depth(self) -> int:
        return len({site.layer for site in self.shape.frame.sites})

    @property
    def heads(self) -> int:
        return self.shape.heads

    @property
    def tie_embeddings(self) -> bool:
        return self.shape.tied

    @property
    def longest(self) -> int | None:
        """How many tokens a sequence may have."""
        return self.shape.longest

    def sites(self) -> tuple[Site, ...]:
        return self.shape.frame.sites

    def frame(self) -> Frame:
        return self.shape.frame

    def check(self) -> None:
        """Raise for a scheme that cannot be put into this architecture."""
        with torch.device("meta"):
            check(self.scheme, anatomy(base_class(self.architecture)(config_of(self.architecture))))


def base_class(values: Values) -> type[torch.nn.Module]:
    """The class of transformers that predicts the next token with this architecture."""
    auto = require("transformers", extra="hf", purpose="a model of somebody's architecture").models.auto.modeling_auto
    config = config_of(values)
    found = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is None:
        raise UnsupportedError(
            f"transformers has no {values['model_type']} that predicts the next token, which a comparison trains on"
        )
    made: type[torch.nn.Module] = found
    return made


@cache
def _shape(text: str) -> Shape:
    from normlab.probes.inputs.hub import quiet

    values = json.loads(text)
    config = config_of(values)
    with torch.device("meta"), quiet():
        body = anatomy(base_class(values)(config))
    own = config.get_text_config()
    longest = next((int(getattr(own, name)) for name in POSITIONS if isinstance(getattr(own, name, None), int)), None)
    return Shape(
        Frame(body.dim, body.sites, norm=body.norm, eps=body.eps),
        int(own.vocab_size),
        int(own.num_attention_heads),
        longest,
        bool(own.tie_word_embeddings),
    )
