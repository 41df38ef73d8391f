"""What `normlab dynamics` does: curves and readings of several schemes, predicted and measured, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normlab.dynamics import oracles
from normlab.dynamics.fields import Field, Stage, scheme_field
from normlab.dynamics.measure import Reading, exponent, law_of, rate, report, scalar_tail
from normlab.dynamics.scalar import LEVELS, scalar
from normlab.dynamics.simulate import Setting, Simulation, simulate
from normlab.errors import UnsupportedError


@dataclass(frozen=True)
class Findings:
    """`rows`: one dict a scheme (the JSON). `curves`: t, and per scheme cosine, band, radius, variance, velocity."""

    setting: Setting
    equation: str
    rows: dict[str, dict[str, Any]]
    curves: dict[str, dict[str, list[float]]]
    tails: dict[str, dict[str, list[float]]]
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting.to_dict(),
            "equation": self.equation,
            "schemes": self.rows,
            "warnings": self.warnings,
        }


def explore(
    schemes: Sequence[str | Field], setting: Setting, *, tail: float | None = None, shown: bool = False
) -> Findings:
    """Run the schemes under one setting. An equiangular start with identity weights is the scalar equation."""
    fields = [scheme_field(s) for s in schemes]
    closed = setting.init == "symmetric" and setting.weights == "identity" and not (setting.causal or setting.ffn)
    if closed and setting.form == "auto":
        return _scalar(fields, setting, tail)
    return _simulated(simulate(fields, setting, progress=shown))


def _labels(fields: Sequence[Field]) -> list[str]:
    """Names, made distinct where one scheme is there twice with different options."""
    names = [f.name for f in fields]
    return [name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def _scalar(fields: list[Field], setting: Setting, tail: float | None) -> Findings:
    shared = {"n": setting.n, "beta": setting.beta, "r0": setting.r0, "gamma0": setting.gamma0}
    rows, curves, tails, warnings = {}, {}, {}, []
    for label, row in zip(_labels(fields), fields, strict=True):
        found = report(row, tail=tail, **shared)  # type: ignore[arg-type]
        curve = scalar(row, time=np.linspace(0.0, setting.time, setting.samples), **shared)  # type: ignore[arg-type]
        end = scalar_tail(row, tail=tail, law=found.law, **shared)  # type: ignore[arg-type]
        rows[label] = found.to_dict()
        warnings += [f"{label}: {text}" for text in found.warnings]
        gap = np.exp(curve.log_gap)
        curves[label] = {
            "t": curve.t.tolist(),
            "cosine": curve.gamma.tolist(),
            "radius": curve.r.tolist(),
            "variance": (gap * (setting.n - 1) / setting.n).tolist(),
            "velocity": curve.velocity.tolist(),
        }
        seen = end.log_velocity > -690.0
        tails[label] = {"t": end.t[1:][seen[1:]].tolist(), "velocity": end.velocity[1:][seen[1:]].tolist()}
    return Findings(setting, "scalar", rows, curves, tails, warnings)


def _simulated(run: Simulation) -> Findings:
    rows, curves, tails, warnings = {}, {}, {}, []
    for i, (label, row) in enumerate(zip(_labels(run.fields), run.fields, strict=True)):
        rows[label] = _row(run, i, row)
        warnings += [f"{label}: {text}" for text in rows[label]["warnings"]]
        cosine, climb = run.cosine[i], run.gap_rate[i].mean(0)
        low, high = np.quantile(cosine, [0.05, 0.95], axis=0)
        curves[label] = {
            "t": run.t.tolist(),
            "cosine": cosine.mean(0).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
            "radius": run.radius[i].mean(0).tolist(),
            "variance": run.variance[i].mean(0).tolist(),
            "velocity": climb.tolist(),
        }
        seen = (climb > 0) & (run.t > 0)
        tails[label] = {"t": run.t[seen].tolist(), "velocity": climb[seen].tolist()}
    return Findings(run.setting, run.form, rows, curves, tails, warnings)


def _row(run: Simulation, i: int, row: Field) -> dict[str, Any]:
    setting = run.setting
    law, clock = law_of(row)
    climb = run.gap_rate[i].mean(0)
    reading = _read(run.t[1:], climb[1:], row, law, clock)
    key = "terminal_exponent" if law == "power" else "terminal_rate"
    identity = setting.weights == "identity" and not setting.ffn
    try:
        theory = oracles.terminal(row, n=setting.n, beta=setting.beta, r0=setting.r0) if identity else None
        predicted = theory and (theory.exponent if law == "power" else theory.rate)
    except UnsupportedError:
        predicted = None
    start = None
    if identity and setting.init == "symmetric" and setting.gamma0 == 0 and not setting.causal:
        start = oracles.initial_velocity(row, n=setting.n, beta=setting.beta, r0=setting.r0).value
    by_seed = [[None if math.isnan(t) else float(t) for t in seed] for seed in run.hits[i]]
    return {
        "scheme": row.name,
        "title": row.title,
        "law": law,
        "initial_velocity": float(climb[0]),
        "initial_velocity_theory": start,
        "initial_speed": float(run.speed[i, :, 0].mean()),
        key: reading.value,
        f"{key}_theory": predicted,
        "terminal_read_at": reading.time,
        "constant": None,
        "constant_theory": None,
        "hitting_times": {
            f"{level:g}": _mean(t) for level, t in zip(run.levels, zip(*by_seed, strict=True), strict=True)
        },
        "hitting_times_by_seed": dict(zip(map(str, setting.seeds), by_seed, strict=True)),
        "final_cosine": float(run.cosine[i, :, -1].mean()),
        "final_radius": float(run.radius[i, :, -1].mean()),
        "variance_rate": _variance_rate(run, i, row),
        "clustering": _theorem(row, setting, identity),
        "warnings": [reading.warning] if reading.warning else [],
    }


def _read(t: np.ndarray, climb: np.ndarray, row: Field, law: str, clock: Any) -> Reading:
    seen = climb > 0
    t, log_rate = t[seen], np.log(climb[seen])
    if len(t) < 8:
        return Reading(math.nan, math.nan, float("nan"), "the mean cosine hardly rises, so no law can be read")
    if law == "power":
        return exponent(t, log_rate, what="the mean cosine's velocity")
    if law == "exponential":
        return rate(t, log_rate, t, what="the mean cosine's velocity")
    assert isinstance(row.last, Stage)
    gains = np.log([row.last.gain(x) for x in t])  # gamma' ~ C c(t) e^{-k clock}: the gain's own factor is taken out
    return rate(t, log_rate - gains, clock(t), what="the mean cosine's velocity")


def _variance_rate(run: Simulation, i: int, row: Field) -> dict[str, float] | None:
    """-Var'/Var at the last sample, beside the small-cone law, where the tokens are in a small cone by then."""
    if run.setting.weights != "identity" or run.setting.ffn or run.gap[i, :, -1].max() > 0.01:
        return None
    try:
        _, law, _ = oracles.variance_rate(row)
    except UnsupportedError:
        return None
    # A few seeds may be at rounding level, where a rate means nothing.
    known = run.gap[i, :, -1] > 1e-20
    if not known.any():
        return None
    measured = run.gap_rate[i, known, -1] / run.gap[i, known, -1]
    return {"measured": float(measured.mean()), "theory": float(law(run.t[-1], run.radius[i, known, -1].mean()))}


def _theorem(row: Field, setting: Setting, identity: bool) -> str:
    if not identity or setting.causal:
        return "no theorem: Theorem 3.1 is for Q = K = V = I without a mask"
    try:
        return oracles.synchronises(row, n=setting.n, beta=setting.beta)[0]
    except UnsupportedError:
        return "no theorem for a scheme of your own"


def _mean(times: Sequence[float | None]) -> float | None:
    """None unless every seed got there: a mean over those that did would flatter the slow ones."""
    return None if any(t is None for t in times) else float(np.mean([t for t in times if t is not None]))


RANDOM_FIGURE_NOTE = (
    "The random-weight figure of arXiv 2510.22026 states d = 512, beta = sqrt(d), one head, T = 10 and a 90 % "
    "interval. Inferred, not stated there: n = 64 tokens, tau = 2.5 for Mix-LN, r0 = 1, Gaussian Q, K, V of variance "
    "1/d held over time, a uniform start, and which seeds."
)


def random_figure(*, seeds: int = 8, first: int = 0) -> Setting:
    """The paper's random-weight figure as a setting; what is inferred is in RANDOM_FIGURE_NOTE."""
    return Setting(
        n=64, d=512, beta=math.sqrt(512.0), time=10.0, samples=101, init="uniform", weights="random",
        seeds=tuple(range(first, first + seeds)), relative=1e-6, absolute=1e-8,
    )  # fmt: skip


__all__ = ["LEVELS", "RANDOM_FIGURE_NOTE", "Findings", "explore", "random_figure"]
