"""Averages of weights that lag, and gradients that are noisy because targets are drawn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, number
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import SetComplement
from normlab.tasks.base import draw
from normlab.training.averaging import BEMA

LAG = "distance to the optimum over that of the raw weights"
VARIANCE = "gradient variance"
VOCABULARY, ROWS, DRAWS = 16, 8, 64


def lag(seed: int, *, dim: int = 64, steps: int = 1000, rate: float = 0.5, noise: float = 0.3) -> tuple[float, float]:
    """(EMA, BEMA): distance to the optimum of a quadratic over the raw weights', at the end of noisy descent at a high rate.

    Curvatures lie between 0.01 and 1, so that some directions are still on their way when the average is read.
    """
    generator = torch.Generator().manual_seed(seed)
    curvature = torch.logspace(-2, 0, dim, dtype=torch.float64)
    theta = nn.Parameter(torch.full((dim,), 3.0, dtype=torch.float64))
    average = BEMA({"theta": theta}, every=1)
    with torch.no_grad():
        for step in range(1, steps + 1):
            gradient = curvature * theta + noise * torch.randn(dim, generator=generator, dtype=torch.float64)
            theta -= rate * gradient
            average.update(step)
    raw = float(theta.detach().norm())
    ema, bema = (float(average.weights(kind)["theta"].norm()) / raw for kind in ("ema", "bema"))
    return ema, bema


@measure("bema-lag", seeds=20, seconds=0.5)
def bema_lag(bench: Bench) -> Findings:
    rows = [lag(seed) for seed in bench.seeds]
    found = [number(LAG, [row[i] for row in rows], arm) for i, arm in enumerate(("ema", "bema"))]
    return Findings(found, {"dim": 64, "steps": 1000, "rate": 0.5, "noise": 0.3})


@measure("null-distance-to-the-optimum-over-that-of-the-raw-weights", seeds=20, seconds=0.5)
def null_lag(bench: Bench) -> Findings:
    return Findings([number(LAG, [lag(1000 + seed)[0] for seed in bench.seeds], "ema")], {"dim": 64, "steps": 1000})


def gradient_variance(seed: int, legal: int, *, exact: bool) -> float:
    """Trace of the covariance, over batches, of the gradient at prefixes with this many legal next tokens."""
    task = SetComplement(vocab=VOCABULARY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(TransformerConfig(vocab_size=VOCABULARY, dim=16, depth=2, heads=2)).double()
    generator = torch.Generator().manual_seed(seed)
    parameters = list(model.parameters())
    gradients = []
    for _ in range(DRAWS):
        tokens = task.inputs(ROWS, VOCABULARY - legal, generator)
        law = task.law(tokens)[:, -1]
        target = law if exact else F.one_hot(draw(law, generator), VOCABULARY).double()
        loss = -(target * model(tokens)[:, -1].log_softmax(-1)).sum(-1).mean()
        gradients.append(torch.cat([_flat(g) for g in torch.autograd.grad(loss, parameters, allow_unused=True)]))
    return float(torch.stack(gradients).var(0).sum())


def _flat(gradient: Tensor | None) -> Tensor:
    return torch.zeros(0, dtype=torch.float64) if gradient is None else gradient.flatten()


@measure("gradient-noise", seeds=10, seconds=8)
def gradient_noise(bench: Bench) -> Findings:
    found: list[Measurement] = []
    for legal in (2, 4, 8, 12):
        for words, exact in (("sampled", False), ("exact", True)):
            values = [gradient_variance(seed, legal, exact=exact) for seed in bench.seeds]
            found.append(number(VARIANCE, values, f"{words}, {legal} legal"))
    return Findings(found, {"tokens": VOCABULARY, "batch": ROWS, "batches": DRAWS, "layers": 2, "dim": 16})


@measure("null-gradient-variance", seeds=20, seconds=1)
def null_gradient_variance(bench: Bench) -> Findings:
    values = [gradient_variance(1000 + seed, 8, exact=False) for seed in bench.seeds]
    return Findings([number(VARIANCE, values, "sampled, 8 legal")], {"tokens": VOCABULARY, "batch": ROWS})
