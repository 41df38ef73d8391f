"""The small networks that many claims are measured on: one set, trained once, then only loaded.

Twelve layers of width 32 on the shipped text, 1500 steps of 8 x 32 bytes: the setting of the stored map of learning rates
(docs/results/stability-12), where Pre-Norm gets from 3.34 nats (single bytes) to 2.1. A scheme trains at the rate that this
map found best for it. Step 0 is not stored: a run's config builds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.errors import InputError
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import run_folder
from normlab.experiments.shapes import run_name
from normlab.model import Transformer, TransformerConfig
from normlab.schemes.names import label, parse_scheme
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig, checkpoint

DEPTH, DIM, HEADS = 12, 32, 2
STEPS = 1500
SEEDS = 5
PRE, POST, FULL, BLOCK, NO_KEY_NORM = (
    "pre_norm", "post_norm", "attn_res", "block_attn_res(blocks=4)", "attn_res(key_norm=false)",
)  # fmt: skip
ARMS = (PRE, BLOCK, FULL, POST, NO_KEY_NORM)
NULL_SEEDS = 20
WARMUPS = (0, 50, 150, 500, 1000)
PRE_WARMUPS = (0, 150, 500)


@dataclass(frozen=True)
class Recipe:
    """Peak rate and steps of warm-up."""

    lr: float
    warmup: int


RECIPES = {POST: Recipe(6e-4, 500)}
USUAL = Recipe(2.4e-3, 100)


def model_config(scheme: str, *, depth: int = DEPTH, dim: int = DIM) -> TransformerConfig:
    return TransformerConfig(vocab_size=256, dim=dim, depth=depth, heads=HEADS, scheme=parse_scheme(scheme))


def shared_models() -> dict[str, RunConfig]:
    """The trained arms, all of one seed before the next seed begins."""
    found = {}
    for seed in range(SEEDS):
        for scheme in ARMS:
            recipe = RECIPES.get(scheme, USUAL)
            train = TrainConfig(
                steps=STEPS, batch=8, length=32, seed=seed, lr=recipe.lr, log_every=10, checkpoint_every=STEPS,
                schedule=Schedule(kind="wsd", warmup=recipe.warmup),
            )  # fmt: skip
            score = HeldOut(layers=(0.0, 1.0), layer_sequences=16, sequences=256)
            found[run_name(scheme, DEPTH, recipe.lr, seed)] = RunConfig(
                model=model_config(scheme), task=Text(), train=train, score=score
            )
    return found


def null_models() -> dict[str, RunConfig]:
    """One cheap scheme with many seeds: what a measure says where there is nothing to find."""
    score = HeldOut(validations=5, layers=(0.0, 1.0), layer_sequences=16, sequences=64)
    found = {}
    for seed in range(100, 100 + NULL_SEEDS):
        train = TrainConfig(
            steps=300, batch=8, length=32, seed=seed, lr=USUAL.lr, log_every=10, checkpoint_every=300,
            schedule=Schedule(kind="wsd", warmup=30),
        )  # fmt: skip
        found[run_name(PRE, DEPTH, USUAL.lr, seed)] = RunConfig(
            model=model_config(PRE), task=Text(), train=train, score=score
        )
    return found


def warmup_models() -> dict[str, RunConfig]:
    """Post-Norm and Pre-Norm over warm-up lengths, in the setting of the stored map: constant rates, 1500 steps of 8 x 32."""
    score = HeldOut(validations=30, curve_sequences=64, sequences=256, layers=(), prune=False)
    found = {}
    for seed in range(SEEDS):
        for scheme, lr, warmups in ((POST, 6e-4, WARMUPS), (PRE, 2.4e-3, PRE_WARMUPS)):
            for warmup in warmups:
                train = TrainConfig(
                    steps=1500, batch=8, length=32, seed=seed, lr=lr, log_every=1, checkpoint_every=1500,
                    schedule=Schedule(kind="constant", warmup=warmup),
                )  # fmt: skip
                found[f"{run_name(scheme, DEPTH, lr, seed)}-w{warmup}"] = RunConfig(
                    model=model_config(scheme), task=Text(), train=train, score=score
                )
    return found


PLANS: dict[str, Callable[[], dict[str, RunConfig]]] = {
    "models": shared_models,
    "null": null_models,
    "warmup": warmup_models,
}


def train(folder: Path, plan: str, *, quiet: bool = True) -> list[FinishedRun]:
    """Bring the runs of a plan to their end, one after the other; what is done costs nothing."""
    found = []
    for name, config in PLANS[plan]().items():
        place = prepare(folder / plan / name, config)
        found += run_folder(place, quiet=quiet)
    return found


# -- loading ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pair:
    """A network before its first step and at the end of its training."""

    scheme: str
    seed: int
    start: Transformer
    end: Transformer
    run: FinishedRun


def finished(folder: Path, plan: str) -> list[FinishedRun]:
    """The runs of a plan that have ended, in its order."""
    found = [read_run(folder / plan / name) for name in PLANS[plan]()]
    return [run for run in found if run is not None]


def pairs(folder: Path, plan: str, scheme: str) -> Iterator[Pair]:
    """The networks of one scheme, seed by seed; a diverged run has none."""
    for run in finished(folder, plan):
        if label(run.config.model.scheme) == label(parse_scheme(scheme)) and run.summary.status == "finished":
            yield Pair(scheme, run.seed, run.config.build().eval(), load_trained(run).eval(), run)


def load_trained(run: FinishedRun) -> Transformer:
    """The weights at the end of a run."""
    model = run.config.build()
    found = checkpoint.latest(run.folder / "checkpoint")
    if found is None:
        raise InputError(f"{str(run.folder)!r} has no checkpoint; delete its summary.json to train it again")
    weights = found.group("model")
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(weights[name])
    return model
