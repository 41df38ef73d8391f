"""How the models of a comparison begin, measured at step 0: what the schemes do not share before they are trained."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from normlab.experiments.compare.arms import Arm
from normlab.experiments.runs.config import RunConfig
from normlab.model import Transformer
from normlab.schemes import Branch
from normlab.schemes.recipes import FAIR, recipe
from normlab.schemes.registry import UnknownScheme

ROLES = {"query and key": ("query", "key"), "value and up": ("value", "up", "gate"), "out and down": ("out", "down")}


@dataclass(frozen=True)
class StartRow:
    """One arm before its first step. Matrices: standard deviation times the square root of the inputs, median over layers.

    `source`: where the arm's recipe is from, in a comparison of recipes.
    """

    scheme: str
    embedding_rms: float
    query_and_key: float | None
    value_and_up: float | None
    out_and_down: float | None
    qk_norm: str
    weight_decay: float
    decays_embeddings: bool
    is_control: bool
    source: str


def start_row(config: RunConfig) -> StartRow | None:
    """Of an arm, from the config of one of its runs; None where the model is a backbone's, or its scheme is not loaded."""
    if isinstance(config.model.scheme, UnknownScheme):
        return None
    measured = _measured(config.replace(train=config.train.replace(seed=0)).to_json())
    if measured is None:
        return None
    model, source = config.ours, ""
    if config.recipe_of is not None:
        source = "not known: the start that all share" if config.recipe_of == FAIR else recipe(config.recipe_of).source
        source = source if config.recipe_of in (FAIR, model.scheme.name) else f"as {config.recipe_of}: {source}"
    qk_norm = model.scheme.demands().qk_norm or model.qk_norm or "none"
    return StartRow(
        Arm.of(config).label,
        *measured,
        qk_norm=qk_norm,
        weight_decay=config.train.weight_decay,
        source=source,
        decays_embeddings=config.train.decay_embeddings,
        is_control=bool(Arm.of(config).start_of),
    )


@lru_cache(maxsize=256)
def _measured(text: str) -> tuple[float, float | None, float | None, float | None] | None:
    model = RunConfig.from_dict(json.loads(text)).build()
    if not isinstance(model, Transformer):
        return None
    sizes: dict[str, list[float]] = {}
    for branch in model.branches:
        for role, weight in cast(Branch, branch).matrices().items():
            sizes.setdefault(role, []).append(float(weight.std()) * weight.shape[1] ** 0.5)
    q, v, out = (_median([size for role in roles for size in sizes.get(role, [])]) for roles in ROLES.values())
    rows = next(iter(model.token_tables()))
    return float(rows.square().mean().sqrt()) * model.config.scale_of_embedding, q, v, out


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
