"""The model's configuration. It names a scheme by its registered name, never by a Python path."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny, model_validator
from typing_extensions import Self

from normlab.config import Config
from normlab.schemes import SCHEMES, Frame, SchemeConfig, Site, make_sites, parse_scheme
from normlab.schemes.names import from_record, to_record
from normlab.schemes.start import AUTHORS_STD, Start


def _to_scheme(value: object) -> object:
    """A name, with options or without, a mapping with a name, or a scheme config."""
    if isinstance(value, str):
        return parse_scheme(value)
    return from_record(value) if isinstance(value, dict) else value


class _SchemeSchema:
    """The JSON Schema of a scheme, from the registry as it is when asked."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: object, handler: object) -> dict[str, object]:
        options = [{"$comment": name, **config.model_json_schema()} for name, config in SCHEMES.items()]
        names = {"type": "string", "enum": sorted(SCHEMES)}
        written = {"type": "string", "pattern": r"^\s*[A-Za-z0-9_-]+\s*\(.*\)\s*$", "$comment": "name(option=value)"}
        return {"anyOf": [names, written, *options], "default": "pre_norm"}


AnyScheme = Annotated[
    SerializeAsAny[SchemeConfig], BeforeValidator(_to_scheme), PlainSerializer(to_record), _SchemeSchema
]


class TransformerConfig(Config):
    """A Transformer: `depth` layers of attention and FFN (attention only when ffn is none) around one scheme."""

    what: ClassVar[str] = "model"

    vocab_size: int = Field(ge=1, le=10**9)
    dim: int = Field(ge=1, le=10**6, description="width of the residual stream")
    depth: int = Field(ge=1, le=10**5, description="layers; each is attention + FFN")
    heads: int = Field(ge=1, le=10**5)
    scheme: AnyScheme = Field("pre_norm", description="where norms go and how outputs join the stream")  # type: ignore[assignment]
    norm: Literal["rmsnorm", "layernorm", "dyt", "derf", "l2"] = "rmsnorm"
    eps: float = Field(1e-6, ge=0)
    positions: Literal["rope", "nope", "learned", "sinusoidal"] = "rope"
    rope_theta: float = Field(10000.0, gt=0)
    ffn: Literal["swiglu", "geglu", "gelu", "gelu_tanh", "relu", "none"] = "swiglu"
    ffn_dim: int | None = Field(
        None, ge=1, le=10**7, description="null: 4 dim, or 8/3 dim in multiples of 8 for gated ones"
    )
    causal: bool = True
    max_length: int = Field(2048, ge=1, le=10**9, description="how many learned positions there are")
    kv_heads: int | None = Field(None, ge=1, description="grouped queries; null: as many as heads")
    head_dim: int | None = Field(None, ge=1, le=10**5, description="null: dim / heads")
    qk_norm: Literal["head", "full"] | None = Field(None, description="norm on queries and keys")
    attention_scale: float | None = Field(None, gt=0, description="null: 1/sqrt(head_dim)")
    softmax: Literal["plain", "ssmax", "adaptive", "sparsemax", "top_k"] = Field(
        "plain",
        description="ssmax: logits times s log n; adaptive: temperature from the entropy; sparsemax: exact zeros, how many "
        "is learned; top_k: of the largest logits alone",
    )
    top_k: int = Field(2, ge=1, description="keys that a query looks at where softmax is top_k")
    head_norm: bool = Field(False, description="norm on each head's output")
    value_residual: bool = Field(False, description="values are averaged with the first layer's")
    bias: bool = Field(False, description="bias in every linear map")
    dropout: float = Field(0.0, ge=0, lt=1)
    tie_embeddings: bool = True
    start: Start = Field(
        "fair",
        description="fair: one rule for all schemes, every matrix N(0, 1/inputs); authors: as the scheme's authors begin; "
        "plain, gpt2, xavier: a recipe by its name",
    )
    start_factor: float = Field(1.0, gt=0, description="on every matrix of a branch at the fair start")
    init_std: float | None = Field(
        None, gt=0, description="of matrices and tables; null: inputs^-1/2 where the start is fair, 0.02 where not"
    )
    embedding_std: float | None = Field(
        None,
        gt=0,
        description="of embedding and head; null: init_std, or dim^-1/2 where that is null and the start fair",
    )
    embedding_scale: float | None = Field(
        None, gt=0, description="factor on the token embedding; null: sqrt(dim) where the start is fair, 1 where not"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(
                f"heads: {self.heads} heads do not divide the width {self.dim}; "
                f"take a divisor of {self.dim}, or set head_dim"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} key-value heads do not divide {self.heads} heads")
        if self.positions == "rope" and self.size_of_head % 2:
            raise ValueError(f"positions: rope turns pairs of channels, but a head has {self.size_of_head}")
        demands = self.scheme.demands()
        if demands.qk_norm is not None and self.qk_norm not in (None, demands.qk_norm):
            raise ValueError(f"qk_norm: {self.scheme.name} has its own norm on queries and keys; leave it out")
        if demands.unit and self.bias:
            raise ValueError(
                f"bias: {self.scheme.name} keeps its weights on the sphere and has no biases; leave it out"
            )
        if self.start != "fair" and self.start_factor != 1.0:
            raise ValueError(f"start_factor: the start {self.start!r} has none; set init_std, or take start: fair")
        self.scheme.check(self.sites())
        return self

    @property
    def size_of_head(self) -> int:
        """Width of a head."""
        return self.head_dim or self.dim // self.heads

    @property
    def std_of_tables(self) -> float:
        """Standard deviation of learned positions, and of the embedding where nothing else is said of it."""
        if self.init_std is not None:
            return self.init_std
        return self.dim**-0.5 if self.start == "fair" else AUTHORS_STD

    @property
    def std_of_embedding(self) -> float:
        """Standard deviation of the embedding at the start."""
        return self.std_of_tables if self.embedding_std is None else self.embedding_std

    @property
    def scale_of_embedding(self) -> float:
        """What multiplies the token embedding where it opens the stream."""
        if self.embedding_scale is not None:
            return self.embedding_scale
        return self.dim**0.5 if self.start == "fair" else 1.0

    @property
    def size_of_ffn(self) -> int:
        """Inner width of the FFN."""
        if self.ffn_dim is not None:
            return self.ffn_dim
        return 8 * max(1, round(self.dim / 3)) if self.ffn in ("swiglu", "geglu") else 4 * self.dim

    @property
    def longest(self) -> int | None:
        """How many tokens a sequence may have: as many as there are learned positions."""
        return self.max_length if self.positions == "learned" else None

    def sites(self) -> tuple[Site, ...]:
        """Where the branches stand."""
        return make_sites(self.depth, ("attention",) if self.ffn == "none" else ("attention", "ffn"))

    def frame(self, width: int | None = None) -> Frame:
        """What the scheme is built in; of another width where one is given."""
        return Frame(
            width or self.dim, self.sites(), norm=self.norm, eps=self.eps, init_std=self.init_std or AUTHORS_STD,
            start=self.start, matrix_std=self.init_std, factor=self.start_factor,
        )  # fmt: skip
