"""Reading a law off a curve: initial velocity, terminal exponent or rate, constant; a warning where t is too small."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from normlab.dynamics.fields import Field, Gain, Stage, scheme_field
from normlab.dynamics.flow.scalar import LEVELS, Curve, scalar
from normlab.dynamics.laws import oracles
from normlab.errors import UnsupportedError
from normlab.results import Plain, plain

SETTLED = 0.03  # how far a reading may have moved over the last three octaves of t
LONGEST = 1e12
Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Clock: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class SlopeReading:
    """A slope fitted over the last octave [T/2, T] of t, and how far it has moved over the last three."""

    value: float
    moved: float
    time: float
    warning: str | None = None


def local_exponent(curve: Curve) -> Array:
    """d log gamma' / d log t at every sample after the first."""
    result: Array = np.gradient(curve.log_velocity[1:], np.log(curve.t[1:]))
    return result


def exponent(t: Array, log_rate: Array, *, what: str = "gamma'") -> SlopeReading:
    """p of C / t^p."""
    return _reading(t, np.log(t), log_rate, f"the exponent of {what}", "a power law")


def rate(t: Array, log_rate: Array, clock: Array, *, what: str = "gamma'") -> SlopeReading:
    """k of C e^{-k clock(t)}."""
    return _reading(t, clock, log_rate, f"the rate of {what}", "an exponential law")


def _reading(t: Array, x: Array, y: Array, what: str, law: str) -> SlopeReading:
    # Three octaves, not two: Peri-LN's exponent has a turning point near t = 50, where two octaves agree on 3.04.
    slopes = [-_slope(x, y, t, t[-1] / k, t[-1] * 2 / k) for k in (2, 4, 8)]
    moved = max(slopes) - min(slopes)
    warning = None
    if not moved <= SETTLED:
        seen = ", ".join(f"{slope:.3g}" for slope in reversed(slopes))
        warning = f"{what} still moves ({seen} over three octaves): t = {t[-1]:g} is too small to read {law}"
    return SlopeReading(slopes[0], moved, float(t[-1]), warning)


def _slope(x: Array, y: Array, t: Array, low: float, high: float) -> float:
    inside = (t >= low * (1 - 1e-12)) & (t <= high * (1 + 1e-12)) & np.isfinite(y) & np.isfinite(x)
    return float(np.polyfit(x[inside], y[inside], 1)[0]) if inside.sum() >= 3 else math.nan


@dataclass(frozen=True)
class PredictionSources:
    """Where each prediction comes from; None where there is none."""

    clustering: str
    initial_velocity: str | None = None
    terminal: str | None = None

    def to_dict(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SchemeReport:
    """One row of the paper's table, predicted and measured. `law` decides what `terminal` is: an exponent or a rate."""

    scheme: str
    title: str
    law: str
    initial_velocity: float
    initial_velocity_theory: float | None
    terminal: SlopeReading
    terminal_theory: float | None
    constant: float | None
    constant_theory: float | None
    hitting_times: Mapping[str, float | None]
    clustering: str
    sources: PredictionSources | None = None

    @property
    def warnings(self) -> list[str]:
        return [self.terminal.warning] if self.terminal.warning else []

    @property
    def terminal_key(self) -> str:
        return "terminal_exponent" if self.law == "power" else "terminal_rate"

    def to_dict(self) -> dict[str, Plain]:
        """The row of the JSON, in which the terminal number is under the name of what it is."""
        theory = {f"{self.terminal_key}_theory": self.terminal_theory}
        found: dict[str, object] = {
            "scheme": self.scheme,
            "title": self.title,
            "law": self.law,
            "initial_velocity": self.initial_velocity,
            "initial_velocity_theory": self.initial_velocity_theory,
            self.terminal_key: self.terminal.value,
            **theory,
            "terminal_read_at": self.terminal.time,
            "constant": self.constant,
            "constant_theory": self.constant_theory,
            "hitting_times": self.hitting_times,
            "clustering": self.clustering,
            **({} if self.sources is None else {"sources": self.sources.to_dict()}),
            "warnings": self.warnings,
        }
        return {key: plain(value) for key, value in found.items()}


def report(
    scheme: str | Field, *, n: int, beta: float, r0: float = 1.0, tail: float | None = None, gamma0: float = 0.0
) -> SchemeReport:
    """Measure a scheme on the scalar equation; `tail` is the horizon of the terminal reading (None: long enough)."""
    row = scheme_field(scheme)
    law, clock = law_of(row)
    end = scalar_tail(row, n=n, beta=beta, r0=r0, tail=tail, law=law, gamma0=gamma0)
    reading = _read(end, law, clock)
    orthogonal = gamma0 == 0.0
    try:
        velocity = oracles.initial_velocity(row, n=n, beta=beta, r0=r0)
    except UnsupportedError:
        velocity = None
    try:
        theory = oracles.terminal(row, n=n, beta=beta, r0=r0)
    except UnsupportedError:
        theory = None
    try:
        clustering, clustering_source = oracles.synchronises(row, n=n, beta=beta)
    except UnsupportedError:
        clustering, clustering_source = "no theorem for a scheme of your own", "-"
    sources = PredictionSources(
        clustering_source,
        f"{velocity.formula} ({velocity.source})" if velocity else None,
        f"{theory.formula} ({theory.source})" if theory else None,
    )
    return SchemeReport(
        row.name,
        row.title,
        law,
        float(np.exp(end.log_velocity[0])),
        velocity.value if velocity and orthogonal else None,
        reading,
        (theory.exponent if law == "power" else theory.rate) if theory else _rate_only(row, law),
        _constant(end, row, law),
        theory.constant if theory and orthogonal else None,
        {f"{level:g}": (None if math.isnan(t) else t) for level, t in end.hits.items()},
        clustering,
        sources,
    )


def scalar_tail(
    row: Field, *, n: int, beta: float, r0: float, tail: float | None, law: str, gamma0: float = 0.0
) -> Curve:
    """The scalar curve on a grid that is even in log t, long enough for its law to be read (or as long as told)."""
    horizon = tail if tail is not None else max(16.0, *(4.0 * switch for switch in row.switches), 16.0)
    while True:
        times = np.concatenate([[0.0], np.geomspace(horizon * 1e-4, horizon, 400)])
        curve = scalar(row, n=n, beta=beta, time=times, r0=r0, levels=LEVELS, gamma0=gamma0)
        enough = curve.log_gap[-1] < math.log(0.01) and _read(curve, law, law_of(row)[1]).moved <= SETTLED / 3
        if tail is not None or enough or horizon > LONGEST or curve.log_gap[-1] < -600.0:
            return curve
        horizon *= 4.0


def law_of(row: Field) -> tuple[str, Clock | None]:
    """Which law to look for, and the clock of an exponential one."""
    stage = row.last
    if not isinstance(stage, Stage) or stage.stream == "free":
        return "power", None
    gain = stage.gain
    if isinstance(gain, Gain) and gain.power == 0.0:
        return "exponential", lambda t: t
    if isinstance(gain, Gain) and gain.power == -0.5:
        return "stretched", lambda t: np.sqrt(t + 1.0)
    return "clocked", lambda t: np.array([gain.integral(x) for x in np.asarray(t)])


def _read(curve: Curve, law: str, clock: Clock | None) -> SlopeReading:
    t, v = curve.t[1:], curve.log_velocity[1:]
    if law == "power":
        return exponent(t, v)
    if law == "exponential":
        return rate(t, v, t)
    stage = curve.field.last
    assert isinstance(stage, Stage)
    gains = np.log([stage.gain(x) for x in t])  # gamma' ~ C c(t) e^{-2 S}: the gain's own factor is taken out
    assert clock is not None
    return rate(t, v - gains, clock(t))


def _rate_only(row: Field, law: str) -> float | None:
    if law == "clocked":
        return 2.0
    return 2.0 if isinstance(row.last, Stage) and row.last.logits else None


def _constant(curve: Curve, row: Field, law: str) -> float | None:
    stage = row.last
    if not isinstance(stage, Stage):
        return None
    if law == "power":  # 2 (1 - gamma) r^2 converges far faster than gamma' t^3
        assert isinstance(stage.gain, Gain)
        twice = 2.0 * math.exp(curve.log_gap[-1]) * curve.r[-1] ** 2
        result: float = twice * (stage.gain.power + 1.0) ** 3 / stage.gain.scale**2
        return result
    t = float(curve.t[-1])
    log_c = float(curve.log_velocity[-1])
    if law == "exponential":
        return math.exp(log_c + 2.0 * stage.gain(0.0) * t)
    if law == "stretched":
        scale = stage.gain(0.0)
        return math.exp(log_c + 0.5 * math.log1p(t) + 4.0 * scale * math.sqrt(t + 1.0))
    return math.exp(log_c - math.log(stage.gain(t)) + 2.0 * stage.gain.integral(t))
