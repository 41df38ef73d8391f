"""What theory says, to be drawn beside what is measured. Mean field: Xiong et al. 2020; sphere: arXiv 2510.22026."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from normlab.probes.measure.metrics import growth_exponent as fitted_exponent

# Growth exponent p of ||h_l|| ~ l^p for random weights: branches of constant size in random directions add in squares.
EXPONENT = {"pre_norm": 0.5, "peri_norm": 0.5, "res_norm": 0.5, "post_norm": 0.0, "pre_and_post_norm": 0.0}


def growth_exponent(placement: str) -> float | None:
    """The exponent that the placement predicts at random weights, or None where theory is silent."""
    return EXPONENT.get(placement.split(",")[0])


def law_exponent(law: Sequence[Any]) -> float | None:
    """The exponent of a scheme's own law: mean squares after layers 1..L; None where it only bounds, or is silent."""
    if len(law) < 2 or not all(isinstance(value, (int, float)) and value > 0 for value in law):
        return None
    return fitted_exponent([math.sqrt(value) for value in law])


def xiong_bounds(layers: int, d: int) -> tuple[list[float], list[float]]:
    """Lower and upper bound on sqrt(E||x_l||^2), l = 1..L, of pre-norm: (1 + l/2) d and (1 + 3l/2) d.

    They hold for Xavier weights, unit-variance embeddings and ReLU, and are drawn as they are: a model that starts
    at another scale, or was trained, may lie outside.
    """
    return (
        [math.sqrt((1 + layer / 2) * d) for layer in range(1, layers + 1)],
        [math.sqrt((1 + 3 * layer / 2) * d) for layer in range(1, layers + 1)],
    )


def orthogonal_sum(start: float, contributions: list[list[float]]) -> list[float]:
    """||h_l|| if every branch were orthogonal to the stream: the square root of the sum of squares so far."""
    total, result = start**2, []
    for layer in contributions:
        total += sum(size**2 for size in layer)
        result.append(math.sqrt(total))
    return result


# s and r' of theta' = (A - <theta, A> theta) / s, from a = <theta, A>, |A|, r and time t (facts of arXiv 2510.22026; the
# row of LayerNorm scaling is derived the same way).
_FIELDS: dict[str, Callable[[float, float, float, float], tuple[float, float]]] = {
    "post_norm": lambda a, size, r, t: (1.0, 0.0),
    "pre_norm": lambda a, size, r, t: (r, a),
    "peri_norm": lambda a, size, r, t: (r * size, a / size),
    "ln_scaling": lambda a, size, r, t: (r * math.sqrt(t + 1), a / math.sqrt(t + 1)),
    "sqrt_scaling": lambda a, size, r, t: (math.sqrt(t + 1), 0.0),
}


def sphere_cosine(placement: str, start: float, layers: int, *, tokens: int, beta: float = 1.0) -> list[float] | None:
    """Mean token cosine after each layer in the equiangular attention dynamics with Q = K = V = I, one layer = time 1.

    With w = exp(-beta (1 - g)) and Z = 1 + (n - 1) w:  g' = 2 w (1 - g)(1 + (n - 1) g) / (s Z), where s is 1 (post),
    r (pre) or r |A| (peri) and r' is 0, a or a / |A| with a = (1 + (n - 1) g w) / Z.
    """
    field = _FIELDS.get(placement.split(",")[0])
    if field is None or not -1 / max(tokens - 1, 1) < start < 1:
        return None
    n, g, r, steps, result = tokens, start, 1.0, 200, []

    def slopes(g: float, r: float, t: float) -> tuple[float, float]:
        w = math.exp(-beta * (1 - g))
        z = 1 + (n - 1) * w
        a = (1 + (n - 1) * g * w) / z
        size = math.sqrt(max(1 + 2 * (n - 1) * g * w + w * w * (n - 1) * (1 + (n - 2) * g), 1e-30)) / z
        s, growth = field(a, size, r, t)
        return 2 * w * (1 - g) * (1 + (n - 1) * g) / (z * s), growth

    h = 1 / steps
    for layer in range(layers):
        for step in range(steps):  # midpoint rule
            t = layer + step * h
            dg, dr = slopes(g, r, t)
            dg, dr = slopes(g + h / 2 * dg, r + h / 2 * dr, t + h / 2)
            g, r = g + h * dg, r + h * dr
        result.append(g)
    return result
