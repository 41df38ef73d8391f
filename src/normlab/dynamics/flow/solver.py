"""A thin driver around SciPy's DOP853 (Dormand-Prince, order 8): exact splits, samples, first crossings, a step limit.

`solve_ivp` would do for one trajectory; here a batch of them shares a solver, each with its own thresholds, the right
hand side changes at given times (the switch of Mix-LN, fresh weights per layer), and only what is observed is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normlab.errors import InputError, NormlabError, require

Rhs = Callable[[float, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Trajectory:
    """`samples[k]`: what `observe` returned at `times[k]`; `hits[m, k]`: when watched value m first reached level k."""

    times: np.ndarray
    samples: list[Any]
    hits: np.ndarray
    steps: int
    evaluations: int


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute error of a step, and how many steps are allowed."""

    relative: float = 1e-10
    absolute: float = 1e-12
    max_steps: int = 20_000


def integrate(
    rhs_from: Callable[[float], Rhs],
    y0: np.ndarray,
    *,
    times: Sequence[float] | np.ndarray,
    observe: Callable[[float, np.ndarray], Any],
    breaks: Sequence[float] = (),
    watch: tuple[Callable[[np.ndarray], np.ndarray], Sequence[float]] | None = None,
    settle: Callable[[np.ndarray], np.ndarray] | None = None,
    tolerance: Tolerance = Tolerance(),
) -> Trajectory:
    """Integrate y' = rhs from times[0] to times[-1].

    rhs_from(t)  the right hand side in force from t on; asked anew at each of `breaks`, where the steps end exactly
    watch        (value of each trajectory, levels): first times at which the value rises through each level
    settle       applied at the breaks (puts directions back on the sphere, against drift)
    """
    times = np.asarray(times, dtype=float)
    end = float(times[-1])
    edges = [float(times[0]), *sorted({float(b) for b in breaks if times[0] < b < end}), end]
    crossings = _Crossings(watch, y0, edges[0])
    samples: list[Any] = [observe(edges[0], y0)]
    steps = evaluations = 0
    y = y0
    for left, right in itertools.pairwise(edges):
        solver = _solver(rhs_from(left), left, y, right, tolerance)
        while solver.status == "running":
            if steps >= tolerance.max_steps:
                raise InputError(
                    f"the horizon t = {end:g} needs more than the {tolerance.max_steps} steps allowed (reached "
                    f"t = {solver.t:.4g}); shorten the time, or allow more steps with max_steps"
                )
            message = solver.step()
            if solver.status == "failed":
                raise NormlabError(f"the integration stopped at t = {solver.t:.6g}: {message}")
            steps += 1
            _sample(solver, times, samples, observe)
            crossings.update(solver)
        y = settle(solver.y) if settle else solver.y
        evaluations += solver.nfev
    return Trajectory(times, samples, crossings.hits, steps, evaluations)


def _solver(rhs: Rhs, left: float, y: np.ndarray, right: float, tolerance: Tolerance) -> Any:
    scipy = require("scipy.integrate", extra="theory", purpose="the sphere dynamics")
    return scipy.DOP853(rhs, left, y, right, rtol=tolerance.relative, atol=tolerance.absolute)


def _sample(solver: Any, times: np.ndarray, samples: list[Any], observe: Callable[[float, np.ndarray], Any]) -> None:
    dense = None
    while len(samples) < len(times) and times[len(samples)] <= solver.t:
        t = times[len(samples)]
        if t == solver.t:
            samples.append(observe(t, solver.y))
        else:
            dense = dense or solver.dense_output()
            samples.append(observe(t, dense(t)))


class _Crossings:
    """First time at which each watched value reaches each level, found on the solver's dense output."""

    def __init__(self, watch: Any, y0: np.ndarray, t0: float) -> None:
        self.value: Callable[[np.ndarray], np.ndarray]
        self.value, levels = watch if watch else (lambda y: np.zeros(0), ())
        self.levels = np.asarray(levels, dtype=float)
        start = self.value(y0)
        self.hits = np.where(start[:, None] >= self.levels, t0, np.nan)

    def update(self, solver: Any) -> None:
        if not np.isnan(self.hits).any():
            return
        passed = np.isnan(self.hits) & (self.value(solver.y)[:, None] >= self.levels)
        if passed.any():
            from scipy.optimize import brentq

            dense = solver.dense_output()
            for m, k in zip(*np.nonzero(passed), strict=True):
                level = self.levels[k]

                def gap(t: float, m: int = m, level: float = level) -> float:
                    return float(self.value(dense(t))[m] - level)

                # The interpolant may differ from the step's ends by rounding, where a level is met right there.
                if gap(solver.t_old) >= 0:
                    self.hits[m, k] = solver.t_old
                elif gap(solver.t) <= 0:
                    self.hits[m, k] = solver.t
                else:
                    self.hits[m, k] = brentq(gap, solver.t_old, solver.t, xtol=1e-13, rtol=1e-14)
