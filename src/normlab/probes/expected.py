"""What theory says, to be drawn beside what is measured. Mean field: Xiong et al. 2020; sphere: arXiv 2510.22026."""

from __future__ import annotations

import math

# Growth exponent p of ||h_l|| ~ l^p for random weights: branches of constant size in random directions add in squares.
EXPONENT = {"pre_norm": 0.5, "peri_norm": 0.5, "res_norm": 0.5, "post_norm": 0.0, "pre_and_post_norm": 0.0}


def growth_exponent(placement: str) -> float | None:
    """The exponent that the placement predicts at random weights, or None where theory is silent."""
    return EXPONENT.get(placement.split(",")[0])


def xiong_bounds(layers: int, d: int) -> tuple[list[float], list[float]]:
    """Lower and upper bound on sqrt(E||x_l||^2), l = 1..L, of pre-norm: (1 + l/2) d and (1 + 3l/2) d.

    They hold for Xavier weights, unit-variance embeddings and ReLU; a model with another scale at the start is drawn
    against them shifted by its own embedding norm (`scaled`).
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


def sphere_cosine(placement: str, start: float, layers: int, *, tokens: int, beta: float = 1.0) -> list[float] | None:
    """Mean token cosine after each layer in the equiangular attention dynamics with Q = K = V = I, one layer = time 1.

    With w = exp(-beta (1 - g)) and Z = 1 + (n - 1) w:  g' = 2 w (1 - g)(1 + (n - 1) g) / (s Z), where s is 1 (post),
    r (pre) or r |A| (peri) and r' is 0, a or a / |A| with a = (1 + (n - 1) g w) / Z.
    """
    kind = {"post_norm": "post", "pre_norm": "pre", "peri_norm": "peri"}.get(placement.split(",")[0])
    if kind is None or not -1 / max(tokens - 1, 1) < start < 1:
        return None
    n, g, r, steps, result = tokens, start, 1.0, 200, []

    def slopes(g: float, r: float) -> tuple[float, float]:
        w = math.exp(-beta * (1 - g))
        z = 1 + (n - 1) * w
        a = (1 + (n - 1) * g * w) / z
        size = math.sqrt(max(1 + 2 * (n - 1) * g * w + w * w * (n - 1) * (1 + (n - 2) * g), 1e-30)) / z
        speed = 2 * w * (1 - g) * (1 + (n - 1) * g) / z
        if kind == "post":
            return speed, 0.0
        return (speed / r, a) if kind == "pre" else (speed / (r * size), a / size)

    h = 1 / steps
    for _ in range(layers):
        for _ in range(steps):  # midpoint rule
            dg, dr = slopes(g, r)
            dg, dr = slopes(g + h / 2 * dg, r + h / 2 * dr)
            g, r = g + h * dg, r + h * dr
        result.append(g)
    return result
