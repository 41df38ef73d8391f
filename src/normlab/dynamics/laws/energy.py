"""The energy that every scheme of the table climbs: it is why the flow comes to rest (the Lojasiewicz argument).

    E(Theta) = (1 / 2 beta) sum_jk exp(beta <theta_j, theta_k>)                  Q = K = V = I
    grad_j E = sum_k exp(beta <theta_j, theta_k>) theta_k = Z_j A_j
    dE/dt    = sum_j Z_j |A_j - <theta_j, A_j> theta_j|^2 / s_j  >=  0           for every s_j > 0

so a scheme changes how fast the energy rises, never that it does. Values must be directions: with raw values r_k theta_k
(OLMo 2's row), a mask or other weights, A_j is no gradient, and there is no such energy.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from normlab.dynamics.fields import Field, inverse_temperature, scheme_field
from normlab.dynamics.flow.batch import Rules
from normlab.errors import UnsupportedError

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def energy(theta: Array, beta: float) -> float:
    """E / n^2, divided by e^beta so that it stays finite: 1/(2 beta) where all tokens agree, the largest value."""
    n = len(theta)
    gaps = 1.0 - theta @ theta.T
    return float(np.exp(-beta * gaps).sum() / (2.0 * beta * n * n))


def slope(scheme: str | Field, theta: Array, radius: Array, *, beta: float, t: float = 0.0) -> float:
    """dE/dt of `energy` by the formula above, for a scheme at one state (beta held)."""
    row = scheme_field(scheme)
    stage = row.stage(t)
    if stage.values == "raw":
        raise UnsupportedError(f"{row.name} averages raw tokens, so its attention is no gradient of an energy")
    beta = inverse_temperature(stage, t, beta)
    weights = np.exp(-beta * (1.0 - theta @ theta.T))
    total = weights.sum(-1)
    push = weights @ theta / total[:, None]
    along = np.einsum("nd,nd->n", theta, push)
    size = np.linalg.norm(push, axis=-1)
    inverse, _ = Rules([stage])(t, radius[None], along[None], size[None])
    turned = np.maximum(size**2 - along**2, 0.0)
    return float(np.sum(total * turned * inverse[0]) / len(theta) ** 2)
