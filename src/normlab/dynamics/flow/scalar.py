"""The scalar equation: n tokens that start equiangular stay so when Q = K = V = I, and one cosine gamma says it all.

    w = e^{-beta (1 - gamma)},  Z = 1 + (n - 1) w,
    <theta, A> = (1 + (n - 1) gamma w) / Z,
    |A|^2 = (1 + 2 (n - 1) gamma w + w^2 (n - 1)(1 + (n - 2) gamma)) / Z^2,
    gamma' = (1/s) 2 w (1 - gamma)(1 + (n - 1) gamma) / Z.

It is integrated in u = log(1 - gamma), where a gap of 1e-70 is as accurate as one of 0.5: in gamma itself nothing
below 1e-16 could be seen, and with it no terminal rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normlab.dynamics.fields import Custom, Field, Stage, inverse_temperature, scheme_field
from normlab.dynamics.flow.solver import Tolerance, integrate
from normlab.errors import ConfigError

LEVELS = (0.1, 0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Curve:
    """gamma(t) of one scheme: times, u = log(1 - gamma), the radius r and log gamma'."""

    field: Field
    n: int
    beta: float
    r0: float
    t: np.ndarray
    log_gap: np.ndarray
    r: np.ndarray
    log_velocity: np.ndarray
    hits: dict[float, float] = dataclasses.field(default_factory=dict)
    steps: int = 0

    @property
    def gamma(self) -> np.ndarray:
        result: np.ndarray = -np.expm1(self.log_gap)
        return result

    @property
    def velocity(self) -> np.ndarray:
        result: np.ndarray = np.exp(self.log_velocity)
        return result


def push(u: np.ndarray | float, n: int, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """<theta, A>, |A| and -du/dt at s = 1, for a gap e^u."""
    gap = np.exp(u)
    g = -np.expm1(u)
    w = np.exp(-beta * gap)
    z = 1.0 + (n - 1) * w
    along = (1.0 + (n - 1) * g * w) / z
    square = 1.0 + 2.0 * (n - 1) * g * w + w * w * (n - 1) * (1.0 + (n - 2) * g)
    return along, np.sqrt(square) / z, 2.0 * w * (1.0 + (n - 1) * g) / z


def check_scalar(n: int, beta: float, r0: float, gamma0: float) -> None:
    if n < 2:
        raise ConfigError(f"n = {n}: the dynamics need at least two tokens, for a single one has no angle to another")
    if not np.isfinite(beta) or beta < 0:
        raise ConfigError(f"beta = {beta:g}: the inverse temperature should be 0 or more (0 is uniform attention)")
    if beta > 300:
        raise ConfigError(
            f"beta = {beta:g}: above 300 other tokens weigh less than e^-300 and nothing moves in any time that a "
            "number can hold; use a smaller beta"
        )
    if not np.isfinite(r0) or r0 <= 0:
        raise ConfigError(f"r0 = {r0:g}: the initial norm of a token should be positive")
    low = -1.0 / (n - 1)
    if not low < gamma0 < 1.0:
        raise ConfigError(
            f"gamma0 = {gamma0:g}: {n} tokens at one angle have a cosine in ({low:.4g}, 1), both ends excluded "
            "(at the ends nothing moves)"
        )


def check_times(t: Sequence[float] | np.ndarray | float, fields: Sequence[Field] = ()) -> np.ndarray:
    """Sample times from 0 on; a number is a horizon with 201 samples. Switches have to lie inside."""
    times = np.asarray(t, dtype=float)
    times = np.linspace(0.0, float(times), 201) if times.ndim == 0 else times
    if times.size < 2 or not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0) or times[0] != 0:
        raise ConfigError(f"the time should be a positive number, or increasing times from 0 on; got {t!r}")
    for row in fields:
        for switch in row.switches:
            if not 0 < switch < times[-1]:
                raise ConfigError(
                    f"tau = {switch:g} of {row.name} is outside the interval (0, {times[-1]:g}), so the switch would "
                    "never be seen; choose tau inside it or a longer time"
                )
    return times


def scalar(
    scheme: str | Field,
    *,
    n: int = 256,
    beta: float = 5.0,
    time: float | Sequence[float] | np.ndarray = 10.0,
    r0: float = 1.0,
    gamma0: float = 0.0,
    levels: Sequence[float] = LEVELS,
    tolerance: Tolerance = Tolerance(1e-12, 1e-14),
) -> Curve:
    """Integrate the scalar equation of a scheme (a name, or a `Field` with its options set)."""
    row = scheme_field(scheme)
    check_scalar(n, beta, r0, gamma0)
    times = check_times(time, [row])

    def rates(t: float, y: np.ndarray, stage: Stage | Custom) -> tuple[float, float]:
        along, size, decay = push(y[0], n, inverse_temperature(stage, t, beta))
        if isinstance(stage, Custom):
            return decay / stage.s(t, y[1], along, size), stage.dr(t, y[1], along, size)
        s = stage.slowness(t, y[1], size)
        # Values r_k theta_k with equal radii only rescale A, which a normalised branch does not feel.
        return decay / s, stage.growth(t, along, size)

    def rhs_from(left: float):  # type: ignore[no-untyped-def]
        stage = row.stage(left)

        def rhs(t: float, y: np.ndarray) -> np.ndarray:
            decay, growth = rates(t, y, stage)
            return np.array([-decay, growth], dtype=float)

        return rhs

    def observe(t: float, y: np.ndarray) -> tuple[float, float, float]:
        return y[0], y[1], y[0] + np.log(rates(t, y, row.stage(t))[0])

    targets = -np.log1p(-np.asarray(levels, dtype=float))  # -u rises through these
    trace = integrate(
        rhs_from,
        np.array([np.log1p(-gamma0), r0]),
        times=times,
        observe=observe,
        breaks=row.switches,
        watch=(lambda y: -y[:1], targets),
        tolerance=tolerance,
    )
    u, r, v = np.array(trace.samples).T
    hits = dict(zip(levels, trace.hits[0].tolist(), strict=True))
    return Curve(row, n, beta, r0, times, u, r, v, hits, trace.steps)
