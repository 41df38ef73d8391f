"""The small networks that many claims are measured on: one set, trained once, then only loaded.

Twelve layers of width 32 on the shipped text, 2000 steps of 8 x 32 bytes: the setting of the stored map of learning rates
(docs/results/stability-12), where Pre-Norm gets from 3.34 nats (single bytes) to 2.1 in 1500 steps. After as many Post-Norm
was near 2.51, too near to the 2.54 of byte pairs to say that it has learned; hence 2000. A scheme trains at the rate that
this map found best for it. Step 0 is not stored: a run's config builds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.errors import InputError
from normlab.experiments.runs.config import OLD_START, RunConfig
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.records import FinishedRun
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import run_folder
from normlab.experiments.shapes import run_name
from normlab.model import Transformer, TransformerConfig
from normlab.schemes.names import label, parse_scheme
from normlab.schemes.recipes import recipe_of
from normlab.tasks import MaskedText, Text
from normlab.training import Schedule, TrainConfig, checkpoint

DEPTH, DIM, HEADS = 12, 32, 2
STEPS = 2000
SEEDS = 10
PRE, POST, FULL, BLOCK, NO_KEY_NORM = (
    "pre_norm", "post_norm", "attn_res", "block_attn_res(blocks=4)", "attn_res(key_norm=false)",
)  # fmt: skip
PERI = "peri_norm"
ARMS = (PRE, POST, FULL, BLOCK)
NULL_SEEDS = 20
SMALL_SEEDS, SPIKE_SEEDS, WARMUP_SEEDS, MASKED_SEEDS = 64, 72, 36, 48
RATE_SEEDS, RATE_STEPS, RATE_DEPTHS = 3, 1000, (6, 12, 24)
RATES = {POST: (1.5e-4, 3e-4, 6e-4, 1.2e-3, 2.4e-3), PRE: (2.4e-3, 9.6e-3, 3.8e-2, 0.15)}
WARMUPS = (0, 20, 60, 120, 240)
NULL_RATES, NULL_WARMUPS = (4e-3, 1.6e-2, 6.4e-2), (0, 10, 30, 60)


@dataclass(frozen=True)
class Peak:
    """Rate and steps of warm-up."""

    lr: float
    warmup: int


PEAKS = {POST: Peak(6e-4, 500)}
USUAL = Peak(2.4e-3, 100)


def model_config(scheme: str, *, depth: int = DEPTH, dim: int = DIM) -> TransformerConfig:
    """With the start that all models had until 2026-11-19: the stored evidence is of such networks."""
    size = {"vocab_size": 256, "dim": dim, "depth": depth, "heads": HEADS}
    return TransformerConfig(scheme=parse_scheme(scheme), **size, **OLD_START)  # type: ignore[arg-type]


def as_authors(model: TransformerConfig) -> TransformerConfig:
    """With the embedding and the initialisation that the scheme's authors give it."""
    own = recipe_of(model.scheme).model_settings(model.dim, qk_norm=False)
    return TransformerConfig.from_dict({**model.to_dict(), **own})


def shared_models() -> dict[str, RunConfig]:
    """The trained arms, all of one seed before the next seed begins."""
    found = {}
    for seed in range(SEEDS):
        for scheme in ARMS:
            peak = PEAKS.get(scheme, USUAL)
            train = TrainConfig(
                steps=STEPS, batch=8, length=32, seed=seed, lr=peak.lr, log_every=10, checkpoint_every=STEPS,
                schedule=Schedule(kind="wsd", warmup=peak.warmup),
            )  # fmt: skip
            score = HeldOut(layers=(0.0, 1.0), layer_sequences=16, sequences=256)
            found[run_name(scheme, DEPTH, peak.lr, seed)] = RunConfig(
                model=model_config(scheme), task=Text(), train=train, score=score
            )
    return found


def null_models() -> dict[str, RunConfig]:
    """One cheap scheme with many seeds: what a measure says where there is nothing to find."""
    score = HeldOut(validations=30, curve_sequences=16, layers=(), prune=False, sequences=64)
    found = {}
    for seed in range(100, 100 + NULL_SEEDS):
        train = TrainConfig(
            steps=300, batch=8, length=32, seed=seed, lr=USUAL.lr, log_every=1, checkpoint_every=300,
            schedule=Schedule(kind="wsd", warmup=30),
        )  # fmt: skip
        found[run_name(PRE, DEPTH, USUAL.lr, seed)] = RunConfig(
            model=model_config(PRE), task=Text(), train=train, score=score
        )
    return found


def warmup_models() -> dict[str, RunConfig]:
    """Post-Norm and Pre-Norm over warm-up lengths at 6 layers: constant rates, 400 steps of 8 x 32."""
    score = HeldOut(validations=40, curve_sequences=32, sequences=256, layers=(), prune=False)
    found = {}
    for seed in range(WARMUP_SEEDS):
        for scheme, lr in ((POST, 2e-3), (PRE, 4e-3)):  # the best rates of the stored map of 6 layers
            for warmup in WARMUPS:
                train = TrainConfig(
                    steps=400, batch=8, length=32, seed=seed, lr=lr, log_every=10, checkpoint_every=400,
                    schedule=Schedule(kind="constant", warmup=warmup),
                )  # fmt: skip
                found[f"{run_name(scheme, 6, lr, seed)}-w{warmup}"] = RunConfig(
                    model=model_config(scheme, depth=6), task=Text(), train=train, score=score
                )
    return found


def key_models() -> dict[str, RunConfig]:
    """Attention Residuals with a norm on the keys and without: 6 layers, long enough for the queries to be learned."""
    score = HeldOut(validations=1, sequences=64, layers=(), prune=False)
    found = {}
    for seed in range(SEEDS):
        for scheme in (FULL, NO_KEY_NORM):
            train = TrainConfig(
                steps=300, batch=8, length=32, seed=seed, lr=USUAL.lr, log_every=10, checkpoint_every=300,
                schedule=Schedule(kind="wsd", warmup=30),
            )  # fmt: skip
            found[run_name(scheme, 6, USUAL.lr, seed)] = RunConfig(
                model=model_config(scheme, depth=6), task=Text(), train=train, score=score
            )
    return found


def key_null_models() -> dict[str, RunConfig]:
    """Many seeds of the one without a norm on the keys, trained for a moment. With it the number is 1/n in every seed."""
    first = next(c for c in key_models().values() if label(c.model.scheme) == label(parse_scheme(NO_KEY_NORM)))
    brief = first.train.replace(steps=60, schedule=Schedule(kind="wsd", warmup=6))
    seeds = range(100, 100 + NULL_SEEDS)
    return {run_name(NO_KEY_NORM, 6, USUAL.lr, s): first.replace(train=brief.replace(seed=s)) for s in seeds}


def spike_models() -> dict[str, RunConfig]:
    """No warm-up, every step logged: the begin of training at 12 layers and at 2, each scheme at its best rate."""
    score = HeldOut(validations=1, sequences=64, layers=(), prune=False)
    found = {}
    for seed in range(SPIKE_SEEDS):
        for depth in (2, 12):
            for scheme, lr in ((POST, 6e-4 if depth == 12 else 4e-3), (PRE, 2.4e-3 if depth == 12 else 4e-3)):
                train = TrainConfig(
                    steps=400, batch=8, length=32, seed=seed, lr=lr, log_every=1, checkpoint_every=400,
                    schedule=Schedule(kind="constant", warmup=0),
                )  # fmt: skip
                found[run_name(scheme, depth, lr, seed)] = RunConfig(
                    model=model_config(scheme, depth=depth), task=Text(), train=train, score=score
                )
    return found


def small_models() -> dict[str, RunConfig]:
    """Two layers without warm-up at three rates, every step logged: do small Post- and Peri-Norm models train as stably?"""
    score = HeldOut(validations=1, sequences=64, layers=(), prune=False)
    found = {}
    for seed in range(SMALL_SEEDS):
        for scheme in (PRE, POST, PERI):
            model = as_authors(model_config(scheme, depth=2))
            for lr in (1e-3, 4e-3, 1.6e-2):
                train = TrainConfig(
                    steps=400, batch=8, length=32, seed=seed, lr=lr, log_every=1, checkpoint_every=400,
                    schedule=Schedule(kind="constant", warmup=0),
                )  # fmt: skip
                found[run_name(scheme, 2, lr, seed)] = RunConfig(model=model, task=Text(), train=train, score=score)
    return found


def small_null_models() -> dict[str, RunConfig]:
    """Many seeds of Post-Norm with two layers, at rates up to where it stops learning, with two lengths of warm-up."""
    score = HeldOut(validations=1, sequences=64, layers=(), prune=False)
    found = {}
    for seed in range(100, 100 + NULL_SEEDS):
        for lr in NULL_RATES:
            for warmup in NULL_WARMUPS if lr == NULL_RATES[0] else (0,):
                train = TrainConfig(
                    steps=120, batch=8, length=32, seed=seed, lr=lr, log_every=1, checkpoint_every=120,
                    schedule=Schedule(kind="constant", warmup=warmup),
                )  # fmt: skip
                found[f"{run_name(POST, 2, lr, seed)}-w{warmup}"] = RunConfig(
                    model=model_config(POST, depth=2), task=Text(), train=train, score=score
                )
    return found


def rate_models() -> dict[str, RunConfig]:
    """Rates without warm-up at three depths, 1000 steps each: which is the highest at which a scheme learns?"""
    score = HeldOut(validations=1, sequences=64, layers=(), prune=False)
    found = {}
    for seed in range(RATE_SEEDS):
        for depth in RATE_DEPTHS:
            for scheme, rates in RATES.items():
                for lr in rates:
                    train = TrainConfig(
                        steps=RATE_STEPS, batch=8, length=32, seed=seed, lr=lr, log_every=1, checkpoint_every=RATE_STEPS,
                        schedule=Schedule(kind="constant", warmup=0),
                    )  # fmt: skip
                    found[run_name(scheme, depth, lr, seed)] = RunConfig(
                        model=model_config(scheme, depth=depth), task=Text(), train=train, score=score
                    )
    return found


def masked_models() -> dict[str, RunConfig]:
    """Encoders that fill in masked bytes: Pre-Norm without warm-up; Post-Norm with it, the better of two rates counts."""
    score = HeldOut(validations=40, curve_sequences=64, sequences=128, layers=(), prune=False)
    found = {}
    for seed in range(MASKED_SEEDS):
        for scheme, lr, warmup in ((PRE, 4e-3, 0), (POST, 2e-3, 200), (POST, 1e-3, 200)):
            train = TrainConfig(
                steps=800, batch=16, length=32, seed=seed, lr=lr, log_every=10, checkpoint_every=800,
                schedule=Schedule(kind="linear", warmup=warmup),
            )  # fmt: skip
            model = model_config(scheme, depth=6).replace(causal=False, vocab_size=257)
            found[run_name(scheme, 6, lr, seed)] = RunConfig(model=model, task=MaskedText(), train=train, score=score)
    return found


def masked_null_models() -> dict[str, RunConfig]:
    """Many seeds of a small Pre-Norm encoder on masked bytes."""
    first = next(iter(masked_models().values()))
    brief = first.replace(
        model=first.model.replace(depth=2), train=first.train.replace(steps=200, checkpoint_every=200, log_every=50)
    )
    seeds = range(100, 100 + NULL_SEEDS)
    return {run_name(PRE, 2, first.train.lr, s): brief.replace(train=brief.train.replace(seed=s)) for s in seeds}


PLANS: dict[str, Callable[[], dict[str, RunConfig]]] = {
    "models": shared_models,
    "null": null_models,
    "warmup": warmup_models,
    "spikes": spike_models,
    "small": small_models,
    "small-null": small_null_models,
    "rates": rate_models,
    "masked": masked_models,
    "masked-null": masked_null_models,
    "keys": key_models,
    "keys-null": key_null_models,
}


def train(folder: Path, plan: str, *, only: Callable[[RunConfig], bool] = lambda _: True) -> list[FinishedRun]:
    """Bring the runs of a plan to their end, one after the other; what is done costs nothing."""
    found = []
    for name, config in PLANS[plan]().items():
        if only(config):
            found += run_folder(prepare(folder / plan / name, config))
    return found


# -- loading ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class StartAndEnd:
    """A network before its first step and at the end of its training."""

    scheme: str
    seed: int
    start: Transformer
    end: Transformer
    run: FinishedRun


def pairs(folder: Path, plan: str, scheme: str, *, seeds: Sequence[int]) -> Iterator[StartAndEnd]:
    """The networks of one scheme, seed by seed, trained where they are not yet there. A diverged run has none."""
    wanted = label(parse_scheme(scheme))
    for run in train(folder, plan, only=lambda c: label(c.model.scheme) == wanted and c.train.seed in seeds):
        if run.summary.status == "finished":
            yield StartAndEnd(scheme, run.seed, run.config.build_ours().eval(), load_trained(run).eval(), run)


def load_trained(run: FinishedRun) -> Transformer:
    """The weights at the end of a run."""
    model = run.config.build_ours()
    found = checkpoint.latest(run.folder / "checkpoint")
    if found is None:
        raise InputError(f"{str(run.folder)!r} has no checkpoint; delete its summary.json to train it again")
    weights = found.group("model")
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(weights[name])
    return model
