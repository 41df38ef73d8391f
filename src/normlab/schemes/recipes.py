"""What the authors of a scheme run it with, beside the scheme itself, each with its source.

Only what is published, or what ships in transformers, stands here; the rest is not known, and the shared setting is used.
A scheme that is not listed has no known recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

UNKNOWN = "not known"
FAIR = "fair"
"""What stands for a recipe's name where none is known: all is as everywhere."""
Branches = Literal["plain", "gpt2", "xavier"]


@dataclass(frozen=True)
class Recipe:
    """None: not known. `shipped` names the model of transformers that tests compare this with.

    embedding   what multiplies the token embedding: 1, or the square root of the width
    width       of the shipped model. The embedding keeps the size that it has there, whatever the width: with a
                factor sqrt(d) the same standard deviation would make it small in small models
    init_std    of matrices and embedding
    branches    how the branches' matrices are drawn: plain (init_std), GPT-2's (the same, the output projections divided
                by sqrt(2L)) or Xavier's
    """

    source: str = UNKNOWN
    shipped: str | None = None
    embedding: Literal["one", "sqrt_width"] | None = None
    width: int | None = None
    init_std: float | None = None
    branches: Branches | None = None
    qk_norm: Literal["none", "head", "full"] | None = None
    weight_decay: float | None = None
    decay_embeddings: bool | None = None
    optimizer: str = UNKNOWN

    def model_settings(self, dim: int, *, qk_norm: bool) -> dict[str, float | str]:
        """Fields of a `TransformerConfig`; `qk_norm`: whether the model may take one (a scheme may bring its own)."""
        found: dict[str, float | str] = {}
        if self.embedding is not None:
            found["embedding_scale"] = self._scale(dim)
        if self.init_std is not None:
            found["init_std"] = self.init_std
            if self.embedding is not None and self.width is not None:
                found["embedding_std"] = self.init_std * self._scale(self.width) / self._scale(dim)
        if qk_norm and self.qk_norm in ("head", "full"):
            found["qk_norm"] = self.qk_norm
        return found

    def start_settings(self, dim: int, *, qk_norm: bool, of_another: bool) -> dict[str, float | str]:
        """Fields of a `TransformerConfig` that begins so, and as all others where this does not know.

        `of_another`: the model's scheme is not the one whose recipe this is, and its own authors' matrices do not count.
        """
        found = self.model_settings(dim, qk_norm=qk_norm)
        if self.branches is None:
            return found
        if self.init_std is None:
            found |= {"embedding_scale": dim**0.5, "embedding_std": dim**-0.5}
        return {**found, "start": self.branches if of_another else "authors"}

    def train_settings(self) -> dict[str, float | bool]:
        """Fields of a `TrainConfig`."""
        known = {"weight_decay": self.weight_decay, "decay_embeddings": self.decay_embeddings}
        return {key: value for key, value in known.items() if value is not None}

    def words(self) -> dict[str, str]:
        """For a card: every field, in words."""
        factor = {"one": "factor 1", "sqrt_width": "factor sqrt(d)", None: UNKNOWN}[self.embedding]
        if self.embedding is not None and self.width and self.init_std:
            factor += f"; rms {self.init_std * self._scale(self.width):.2g} at width {self.width}, kept at others"
        decay = UNKNOWN if self.weight_decay is None else f"{self.weight_decay:g}"
        if self.decay_embeddings is False:
            decay += ", not on embeddings"
        return {
            "embedding": factor, "q-k norm": self.qk_norm or UNKNOWN,
            "initialisation": UNKNOWN if self.init_std is None else f"standard deviation {self.init_std:g}",
            "weight decay": decay, "optimizer": self.optimizer, "source": self.source,
        }  # fmt: skip

    def _scale(self, width: int) -> float:
        return width**0.5 if self.embedding == "sqrt_width" else 1.0


MODEL_FIELDS = ("start", "embedding_scale", "embedding_std", "init_std", "qk_norm")
TRAIN_FIELDS = ("weight_decay", "decay_embeddings")

RECIPES: dict[str, Recipe] = {
    "post_norm": Recipe(
        source="Vaswani et al. 2017, sections 3.4 and 5.3; transformers: marian",
        shipped="marian",
        embedding="sqrt_width",
        branches="xavier",
        qk_norm="none",
        optimizer="Adam, betas 0.9 and 0.98, 4000 steps of warm-up, then 1/sqrt(step)",
    ),
    "pre_norm": Recipe(
        source="GPT-2; transformers: gpt2",
        shipped="gpt2",
        embedding="one",
        width=768,
        init_std=0.02,
        branches="gpt2",
        qk_norm="none",
    ),
    "peri_norm": Recipe(
        source="Gemma 2 as shipped in transformers: gemma2 (Gemma 3 adds a norm on each head's q and k)",
        shipped="gemma2",
        embedding="sqrt_width",
        width=2304,
        init_std=0.02,
        branches="plain",
        qk_norm="none",
    ),
    "res_norm": Recipe(
        source="OLMo 2, arXiv 2501.00656, section 2; transformers: olmo2",
        shipped="olmo2",
        embedding="one",
        width=4096,
        init_std=0.02,
        branches="plain",
        qk_norm="full",
        weight_decay=0.1,
        decay_embeddings=False,
        optimizer="AdamW, betas 0.9 and 0.95, with a z-loss (not built here)",
    ),
    "ngpt": Recipe(
        source="Loshchilov et al. 2024, nGPT, arXiv 2410.01131",
        weight_decay=0.0,
        optimizer="Adam without weight decay and without warm-up",
    ),
    "residual_scaling": Recipe(
        source="transformers: zaya (its q-k norm belongs to an attention of its own)",
        shipped="zaya",
        init_std=0.02,
        branches="plain",
    ),
    "gated_residual": Recipe(
        source="transformers: qwen4_exp", shipped="qwen4_exp", init_std=0.02, branches="plain", qk_norm="head"
    ),
    "independent_hc": Recipe(source="transformers: hy_v4", shipped="hy_v4", init_std=0.006, branches="plain"),
    "laurel": Recipe(
        source="Gemma 3n as shipped in transformers: gemma3n",
        shipped="gemma3n",
        embedding="sqrt_width",
        width=2048,
        init_std=0.02,
        branches="plain",
        qk_norm="head",
    ),
    "lambda_skip": Recipe(
        source="nanochat; transformers: nanochat has its q-k norm",
        shipped="nanochat",
        qk_norm="head",
        optimizer="Muon for the matrices of branches, AdamW for the rest",
    ),
}


# Whose branches begin as another's do, by their papers or code: Xavier, or GPT-2's (`normlab schemes show NAME`).
_ALIKE = {
    **dict.fromkeys(("admin", "b2t", "deep_norm", "no_norm", "resi_dual", "rezero", "sub_norm"), "post_norm"),
    **dict.fromkeys(
        ("delta_attn_res", "dense_former", "gpas", "hybrid_norm", "hyper_connections", "mhc", "mudd"), "pre_norm"
    ),
}


def recipe(name: str) -> Recipe:
    """The authors' recipe of a scheme; one of which nothing is known where it is not listed."""
    return RECIPES.get(name, Recipe())


class HasName(Protocol):
    @property
    def name(self) -> str: ...


def recipe_of(scheme: HasName) -> Recipe:
    """Of a scheme with its options: one that is put around another placement runs as that placement's authors run it."""
    inner = getattr(scheme, "inner", None)
    if scheme.name not in RECIPES and isinstance(inner, str):
        return recipe(inner)
    return recipe(scheme.name)


def recipe_name(scheme: HasName) -> str:
    """Of the scheme whose recipe this one takes; `fair` where nothing is known of how its authors run it.

    More is known here than in `recipe_of`, by which older sweeps ran: the matrices were the authors' anyway.
    """
    inner = getattr(scheme, "inner", None)
    name = inner if scheme.name not in RECIPES and isinstance(inner, str) else scheme.name
    name = _ALIKE.get(name, name)
    return name if name in RECIPES else FAIR
