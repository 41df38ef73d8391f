"""What `normlab dynamics` does: curves and readings of several schemes, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from normlab.dynamics.fields import Field, Stage, scheme_field
from normlab.dynamics.flow.scalar import scalar
from normlab.dynamics.flow.simulate import Setting, Simulation, simulate
from normlab.dynamics.laws import oracles
from normlab.dynamics.laws.readings import (
    Array,
    Clock,
    SchemeReport,
    SlopeReading,
    exponent,
    law_of,
    rate,
    report,
    scalar_tail,
)
from normlab.errors import UnsupportedError
from normlab.results import Plain, as_row, plain


@dataclass(frozen=True)
class DepthCurve:
    """A trajectory (the mean over seeds), with the band that holds 90 % of the seeds where there are several."""

    t: list[float]
    cosine: list[float]
    radius: list[float]
    variance: list[float]
    velocity: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


@dataclass(frozen=True)
class Tail:
    """The end of a trajectory, where its law is read."""

    t: list[float]
    velocity: list[float]


@dataclass(frozen=True)
class VarianceRate:
    """-Var'/Var at the last sample, and by the small-cone law."""

    measured: float
    theory: float


@dataclass(frozen=True)
class Simulated:
    """What only a simulation knows: means over its seeds."""

    initial_speed: float
    hitting_times_by_seed: Mapping[str, list[float | None]]
    final_cosine: float
    final_radius: float
    variance_rate: VarianceRate | None


@dataclass(frozen=True)
class SchemeFinding:
    """One scheme: its row of the table, its curve and its tail."""

    report: SchemeReport
    curve: DepthCurve
    tail: Tail
    simulated: Simulated | None = None

    def to_dict(self) -> dict[str, Plain]:
        """The row of the JSON; curves are for the page."""
        more = {} if self.simulated is None else as_row(self.simulated)
        return {**self.report.to_dict(), **more}


@dataclass(frozen=True)
class DynamicsFindings:
    """What was found for each scheme, by its label."""

    setting: Setting
    equation: str
    schemes: Mapping[str, SchemeFinding]

    @property
    def warnings(self) -> list[str]:
        return [f"{label}: {text}" for label, found in self.schemes.items() for text in found.report.warnings]

    def to_dict(self) -> dict[str, Plain]:
        return {
            "setting": plain(self.setting.to_dict()),
            "equation": self.equation,
            "schemes": {label: dict(found.to_dict()) for label, found in self.schemes.items()},
            "warnings": list(self.warnings),
        }


def explore(
    schemes: Sequence[str | Field], setting: Setting, *, tail: float | None = None, shown: bool = False
) -> DynamicsFindings:
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


def _scalar(fields: list[Field], setting: Setting, tail: float | None) -> DynamicsFindings:
    n, beta, r0, gamma0 = setting.n, setting.beta, setting.r0, setting.gamma0
    schemes = {}
    for label, row in zip(_labels(fields), fields, strict=True):
        found = report(row, tail=tail, n=n, beta=beta, r0=r0, gamma0=gamma0)
        times = np.linspace(0.0, setting.time, setting.samples)
        curve = scalar(row, time=times, n=n, beta=beta, r0=r0, gamma0=gamma0)
        end = scalar_tail(row, tail=tail, law=found.law, n=n, beta=beta, r0=r0, gamma0=gamma0)
        gap = np.exp(curve.log_gap)
        drawn = DepthCurve(
            t=curve.t.tolist(),
            cosine=curve.gamma.tolist(),
            radius=curve.r.tolist(),
            variance=(gap * (n - 1) / n).tolist(),
            velocity=curve.velocity.tolist(),
        )
        seen = end.log_velocity > -690.0
        ending = Tail(end.t[1:][seen[1:]].tolist(), end.velocity[1:][seen[1:]].tolist())
        schemes[label] = SchemeFinding(found, drawn, ending)
    return DynamicsFindings(setting, "scalar", schemes)


def _simulated(run: Simulation) -> DynamicsFindings:
    schemes = {
        label: _scheme(run, i, row) for i, (label, row) in enumerate(zip(_labels(run.fields), run.fields, strict=True))
    }
    return DynamicsFindings(run.setting, run.form, schemes)


def _scheme(run: Simulation, i: int, row: Field) -> SchemeFinding:
    cosine, climb = run.cosine[i], run.gap_rate[i].mean(0)
    low, high = np.quantile(cosine, [0.05, 0.95], axis=0)
    curve = DepthCurve(
        t=run.t.tolist(),
        cosine=cosine.mean(0).tolist(),
        radius=run.radius[i].mean(0).tolist(),
        variance=run.variance[i].mean(0).tolist(),
        velocity=climb.tolist(),
        low=low.tolist(),
        high=high.tolist(),
    )
    seen = (climb > 0) & (run.t > 0)
    by_seed = [[None if math.isnan(t) else float(t) for t in seed] for seed in run.hits[i]]
    simulated = Simulated(
        initial_speed=float(run.speed[i, :, 0].mean()),
        hitting_times_by_seed=dict(zip(map(str, run.setting.seeds), by_seed, strict=True)),
        final_cosine=float(run.cosine[i, :, -1].mean()),
        final_radius=float(run.radius[i, :, -1].mean()),
        variance_rate=_variance_rate(run, i, row),
    )
    tail = Tail(run.t[seen].tolist(), climb[seen].tolist())
    return SchemeFinding(_report(run, i, row, by_seed), curve, tail, simulated)


def _report(run: Simulation, i: int, row: Field, by_seed: list[list[float | None]]) -> SchemeReport:
    setting = run.setting
    law, clock = law_of(row)
    climb = run.gap_rate[i].mean(0)
    reading = _read(run.t[1:], climb[1:], row, law, clock)
    identity = setting.weights == "identity" and not setting.ffn
    predicted = None
    if identity:
        with suppress(UnsupportedError):
            theory = oracles.terminal(row, n=setting.n, beta=setting.beta, r0=setting.r0)
            predicted = theory.exponent if law == "power" else theory.rate
    start = None
    if identity and setting.init == "symmetric" and setting.gamma0 == 0 and not setting.causal:
        start = oracles.initial_velocity(row, n=setting.n, beta=setting.beta, r0=setting.r0).value
    hits = {f"{level:g}": _mean(t) for level, t in zip(run.levels, zip(*by_seed, strict=True), strict=True)}
    return SchemeReport(
        scheme=row.name,
        title=row.title,
        law=law,
        initial_velocity=float(climb[0]),
        initial_velocity_theory=start,
        terminal=reading,
        terminal_theory=predicted,
        constant=None,
        constant_theory=None,
        hitting_times=hits,
        clustering=_theorem(row, setting, identity),
    )


def _read(t: Array, climb: Array, row: Field, law: str, clock: Clock | None) -> SlopeReading:
    seen = climb > 0
    t, log_rate = t[seen], np.log(climb[seen])
    if len(t) < 8:
        return SlopeReading(math.nan, math.nan, float("nan"), "the mean cosine hardly rises, so no law can be read")
    if law == "power":
        return exponent(t, log_rate, what="the mean cosine's velocity")
    if law == "exponential":
        return rate(t, log_rate, t, what="the mean cosine's velocity")
    assert isinstance(row.last, Stage)
    gains = np.log([row.last.gain(x) for x in t])  # gamma' ~ C c(t) e^{-k clock}: the gain's own factor is taken out
    assert clock is not None
    return rate(t, log_rate - gains, clock(t), what="the mean cosine's velocity")


def _variance_rate(run: Simulation, i: int, row: Field) -> VarianceRate | None:
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
    return VarianceRate(float(measured.mean()), float(law(run.t[-1], run.radius[i, known, -1].mean())))


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


__all__ = ["RANDOM_FIGURE_NOTE", "DynamicsFindings", "explore", "random_figure"]
