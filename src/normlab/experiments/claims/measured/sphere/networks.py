"""Seed 003 in networks: is what the theory recommends good for training, and does it describe a trained network?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.dynamics.networks.bridge import bridge, random_tokens
from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import number
from normlab.experiments.claims.measured.sphere.equations import early_times
from normlab.experiments.claims.measured.start.training import train
from normlab.experiments.runs.measured import held_out
from normlab.model import Attention, Transformer, TransformerConfig
from normlab.schemes import parse_scheme
from normlab.tasks import Text

LENGTH = 64


@dataclass(frozen=True)
class SmallSize:
    depth: int
    width: int
    batch: int
    steps: int


BRIDGE, NULL = SmallSize(6, 48, 8, 250), SmallSize(2, 32, 8, 100)
EARLY = SmallSize(4, 32, 16, 580)


def language_model(seed: int, shape: SmallSize, *, early: float = 1.0) -> Transformer:
    """A small model of bytes; `early` multiplies the query and key weights of the first half of the layers."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocab_size=256, dim=shape.width, depth=shape.depth, heads=2, scheme=parse_scheme("pre_norm"),
        start="authors", init_std=shape.width**-0.5,
    )  # fmt: skip
    model = Transformer(config)
    for site, branch in zip(model.sites, model.branches, strict=True):
        if isinstance(branch, Attention) and site.layer <= shape.depth // 2:
            for role, weight in branch.matrices().items():
                if role in ("query", "key"):
                    weight.mul_(early**0.5)
    return model


@torch.no_grad()
def text_loss(model: Transformer) -> float:
    """On held-out windows of the shipped plays, the same for every model."""
    model.eval()
    batches = held_out(Text(), 128, 32, LENGTH)
    losses = [
        torch.nn.functional.cross_entropy(model(b.tokens).flatten(0, 1), b.targets.flatten()).item() for b in batches
    ]
    return sum(losses) / len(losses)


def trained_loss(seed: int, folder: Path, shape: SmallSize, *, early: float = 1.0) -> float:
    return text_loss(_trained(language_model(seed, shape, early=early), folder, seed, shape))


def _trained(model: Transformer, folder: Path, seed: int, shape: SmallSize) -> Transformer:
    return train(model, Text(), folder, seed=seed, steps=shape.steps, length=LENGTH, batch=shape.batch)


@measure("early-qk", seeds=12, seconds=21)
def early_qk(bench: Bench) -> Findings:
    """Smaller query and key weights in the first half: the theory's time, and the loss of trained models."""
    metric = "held-out loss of small early QK"
    times = early_times()  # first: without scipy it ends here, and not after eight minutes of training
    plain = [trained_loss(seed, bench.folder / f"plain-{seed}", EARLY) for seed in bench.seeds]
    cooler = [trained_loss(seed, bench.folder / f"early-{seed}", EARLY, early=0.25) for seed in bench.seeds]
    found = [times, number(metric, plain, "plain"), number(metric, cooler, "early QK / 4")]
    tokens = EARLY.steps * EARLY.batch * LENGTH / language_model(0, EARLY).num_parameters()
    shape = f"{EARLY.depth} layers of width {EARLY.width}, initial deviation d^-1/2"
    length = {"steps": EARLY.steps, "tokens per parameter": round(tokens, 2)}
    return Findings(found, {"shape": shape, **length, "batch": f"{EARLY.batch} x {LENGTH} bytes"})


@measure("null-held-out-loss-of-small-early-qk", seeds=20, seconds=1)
def null_early_qk(bench: Bench) -> Findings:
    losses = [trained_loss(100 + seed, bench.folder / f"{seed}", NULL) for seed in bench.seeds]
    settings = {"layers": NULL.depth, "steps": NULL.steps}
    return Findings([number("held-out loss of small early QK", losses, "pre_norm")], settings)


@measure("bridge", seeds=5, seconds=25)
def bridges(bench: Bench) -> Findings:
    """How far the prediction for random layers is from the mean cosine between tokens, before and after training."""
    random, trained = [], []
    ids = random_tokens(256, batch=2, length=32)
    for seed in bench.seeds:
        model = language_model(seed, BRIDGE)
        random.append(bridge(model, ids).kernel_error)
        trained.append(bridge(_trained(model, bench.folder / f"{seed}", seed, BRIDGE), ids).kernel_error)
    found = [
        number("largest miss of the mean cosine in a random network", random, "pre_norm"),
        number("largest miss of the mean cosine in a trained network", trained, "pre_norm"),
    ]
    return Findings(found, {"layers": BRIDGE.depth, "d": BRIDGE.width, "steps": BRIDGE.steps})
