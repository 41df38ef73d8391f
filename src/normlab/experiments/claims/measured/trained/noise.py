"""What averaging is for, without a network or with one that is not trained: lag, memory, noise of sampled targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, number
from normlab.experiments.claims.measured.start.training import minimal_model
from normlab.tasks import Batch, SetComplement
from normlab.training.averaging import BEMA
from normlab.training.loop import cross_entropy

DISTANCE = "distance to the moving optimum over that of the raw weights"
VARIANCE = "gradient variance"
STEPS, EVERY, DIM = 40_000, 400, 16
LR, SPEED, NOISE = 0.1, 1e-4, 1.0
VOCAB, DRAWS, BATCH = 16, 32, 32


def drift(seeds: Sequence[int]) -> dict[str, list[float]]:
    """SGD with noise after an optimum that moves at a constant speed; how far raw, EMA and BEMA weights are from it.

    A quadratic of curvature 1 in DIM dimensions, the library's own averages with their defaults, one update in 400 steps.
    """
    count = len(seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    way = torch.stack([torch.randn(DIM, generator=g, dtype=torch.float64) for g in generators])
    way = way / way.norm(dim=1, keepdim=True)
    theta = torch.zeros(count, DIM, dtype=torch.float64)
    average = BEMA({"theta": theta}, every=EVERY)
    for first in range(0, STEPS, EVERY):
        noise = torch.stack([torch.randn(EVERY, DIM, generator=g, dtype=torch.float64) for g in generators], 1)
        for i in range(EVERY):
            step = first + i + 1
            theta.sub_(LR * (theta - SPEED * step * way + NOISE * noise[i]))
            average.update(step)
    optimum = SPEED * STEPS * way

    def distance(weights: Tensor) -> Tensor:
        found: Tensor = torch.linalg.vector_norm(weights - optimum, dim=1)
        return found

    raw = distance(theta)
    return {kind: (distance(average.weights(kind)["theta"]) / raw).tolist() for kind in ("ema", "bema")}


@measure("bema-lag", seeds=20, seconds=1)
def lag(bench: Bench) -> Findings:
    found = drift(bench.seeds)
    settings = {"steps": STEPS, "every": EVERY, "lr": LR, "speed": SPEED, "noise": NOISE, "dimensions": DIM}
    return Findings([number(DISTANCE, found[kind], kind) for kind in ("ema", "bema")], settings)


@measure("null-distance-to-the-moving-optimum-over-that-of-the-raw-weights", seeds=24, seconds=1)
def null_lag(bench: Bench) -> Findings:
    return Findings([number(DISTANCE, drift([1000 + seed for seed in bench.seeds])["ema"], "ema")])


def gradient_variance(seed: int, *, legal: int, targets: str) -> float:
    """Of the gradient of a batch over draws of the batch, summed over parameters; prefixes with so many legal tokens."""
    model = minimal_model("pre_norm", seed, vocab=VOCAB)
    task = SetComplement(vocab=VOCAB, targets=targets)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(DRAWS):
        batch = task.sample(BATCH, VOCAB - legal, generator, law=True)
        last = Batch(batch.tokens, batch.targets[:, -1:], None if batch.law is None else batch.law[:, -1:])
        loss = cross_entropy(model(batch.tokens)[:, -1:], last, exact=targets == "exact")
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return float(torch.stack(found).var(dim=0).sum())


def _noise(seeds: Sequence[int], *, legal: int, targets: str) -> Measurement:
    values = [gradient_variance(seed, legal=legal, targets=targets) for seed in seeds]
    return number(VARIANCE, values, f"{targets}, {legal} legal")


@measure("gradient-noise", seeds=60, seconds=0.3)
def gradient_noise(bench: Bench) -> Findings:
    cases = [(8, "sampled"), (8, "exact"), (2, "sampled"), (2, "exact")]
    values = [_noise(bench.seeds, legal=legal, targets=targets) for legal, targets in cases]
    notes = [
        "The minimal model before training; only the last prefix is scored, so all its prefixes have so many legal."
    ]
    return Findings(values, {"vocab": VOCAB, "batch": BATCH, "draws": DRAWS}, notes)


@measure("null-gradient-variance", seeds=24, seconds=1)
def null_noise(bench: Bench) -> Findings:
    return Findings([_noise([1000 + seed for seed in bench.seeds], legal=8, targets="sampled")])
