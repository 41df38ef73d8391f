"""How the models of a comparison begin, measured at step 0: what the schemes do not share before they are trained."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch.nn import functional

from normlab.errors import InputError
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
    first_loss: float | None = None
    """On sequences of the task, before the first step."""


def start_row(config: RunConfig) -> StartRow | None:
    """Of an arm, from the config of one of its runs; None for a backbone, and for a scheme whose code is not loaded."""
    if isinstance(config.model.scheme, UnknownScheme):
        return None
    measured = _measured(config.replace(train=config.train.replace(seed=0)).to_json())
    if measured is None:
        return None
    embedding, query_and_key, value_and_up, out_and_down, first_loss = measured
    model, source = config.ours, ""
    if config.recipe_of is not None:
        source = "not known: the start that all share" if config.recipe_of == FAIR else recipe(config.recipe_of).source
        source = source if config.recipe_of in (FAIR, model.scheme.name) else f"as {config.recipe_of}: {source}"
    qk_norm = model.scheme.demands().qk_norm or model.qk_norm or "none"
    return StartRow(
        Arm.of(config).label,
        embedding,
        query_and_key,
        value_and_up,
        out_and_down,
        first_loss=first_loss,
        qk_norm=qk_norm,
        weight_decay=config.train.weight_decay,
        source=source,
        decays_embeddings=config.train.decay_embeddings,
        is_control=bool(Arm.of(config).start_of),
    )


@lru_cache(maxsize=256)
def _measured(text: str) -> tuple[float, float | None, float | None, float | None, float | None] | None:
    config = RunConfig.from_dict(json.loads(text))
    model = config.build()
    if not isinstance(model, Transformer):
        return None
    sizes: dict[str, list[float]] = {}
    for branch in model.branches:
        for role, weight in cast(Branch, branch).matrices().items():
            sizes.setdefault(role, []).append(float(weight.std()) * weight.shape[1] ** 0.5)
    q, v, out = (_median([size for role in roles for size in sizes.get(role, [])]) for roles in ROLES.values())
    rows = next(iter(model.token_tables()))
    return float(rows.square().mean().sqrt()) * model.config.scale_of_embedding, q, v, out, _first_loss(config, model)


@torch.no_grad()
def _first_loss(config: RunConfig, model: Transformer) -> float | None:
    """None where the data of the runs are no longer there."""
    try:
        batch = config.task.sample(8, config.train.length, torch.Generator().manual_seed(0))
    except InputError:
        return None
    logits = model.eval()(batch.tokens)
    return float(functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
