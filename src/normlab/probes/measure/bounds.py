"""What theory says, to be drawn beside what is measured. Mean field: Xiong et al. 2020; sphere: `dynamics.scalar`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normlab.dynamics.flow.scalar import scalar
from normlab.probes.measure.metrics import growth_exponent as fitted_exponent
from normlab.probes.measure.table import Real


@dataclass(frozen=True)
class BoundsPerLayer:
    """A lower and an upper bound per layer."""

    low: tuple[Real, ...]
    high: tuple[Real, ...]


@dataclass(frozen=True)
class Theory:
    """What theory says of this placement; None where it is silent."""

    growth_exponent: float | None = None
    xiong: BoundsPerLayer | None = None
    orthogonal: tuple[Real, ...] | None = None
    sphere_cosine: tuple[Real, ...] | None = None


# Growth exponent p of ||h_l|| ~ l^p for random weights: branches of constant size in random directions add in squares.
EXPONENT = {"pre_norm": 0.5, "peri_norm": 0.5, "res_norm": 0.5, "post_norm": 0.0, "pre_and_post_norm": 0.0}


def growth_exponent(placement: str) -> float | None:
    """The exponent that the placement predicts at random weights, or None where theory is silent."""
    return EXPONENT.get(placement.split(",")[0])


def law_exponent(law: Sequence[object]) -> float | None:
    """The exponent of a scheme's own law: mean squares after layers 1..L; None where it only bounds, or is silent."""
    known = [float(value) for value in law if isinstance(value, (int, float)) and value > 0]
    return fitted_exponent([math.sqrt(value) for value in known]) if len(known) == len(law) >= 2 else None


def xiong_bounds(layers: int, d: int) -> BoundsPerLayer:
    """Lower and upper bound on sqrt(E||x_l||^2), l = 1..L, of pre-norm: (1 + l/2) d and (1 + 3l/2) d.

    They hold for Xavier weights, unit-variance embeddings and ReLU, and are drawn as they are: a model that starts
    at another scale, or was trained, may lie outside.
    """
    return BoundsPerLayer(
        tuple(math.sqrt((1 + layer / 2) * d) for layer in range(1, layers + 1)),
        tuple(math.sqrt((1 + 3 * layer / 2) * d) for layer in range(1, layers + 1)),
    )


def orthogonal_sum(start: float, contributions: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """||h_l|| if every branch were orthogonal to the stream: the square root of the sum of squares so far."""
    total, result = start**2, list[float]()
    for layer in contributions:
        total += sum(size**2 for size in layer)
        result.append(math.sqrt(total))
    return tuple(result)


# The placements that are rows of the sphere dynamics.
SPHERE = ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "sqrt_scaling")


def sphere_cosine(
    placement: str, start: float, layers: int, *, tokens: int, beta: float = 1.0
) -> tuple[float, ...] | None:
    """Mean token cosine after each layer in the equiangular attention dynamics with Q = K = V = I, one layer = time 1."""
    name = placement.split(",")[0]
    if name not in SPHERE or not -1 / max(tokens - 1, 1) < start < 1:
        return None
    curve = scalar(name, n=tokens, beta=beta, time=[float(t) for t in range(layers + 1)], gamma0=start)
    return tuple(float(value) for value in curve.gamma[1:])
