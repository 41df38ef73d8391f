"""Closed forms of the equiangular dynamics (Q = K = V = I), each with its source.

Two identities carry everything. With e = 1 - gamma, for a stream that grows ("free": Pre, Peri, LayerNorm Scaling,
OLMo 2, Mix after its switch) the clock cancels out of dr/dgamma, so all of them trace one curve:

    r^2(e) = r0^2 (e0/e) exp J(e, e0),   J(a, b) = int_a^b (e^{beta e} - 1) / (e (1 + (n-1)(1-e))) de.

For a stream that is put back on the sphere ("unit"), a gain c(t) only changes the clock S = int c dt:

    dS = -|A|^q Z / (2 w e (1 + (n-1)(1-e))) de,   Z/w = e^{beta e} + n - 1,   q = 1 for nGPT, else 0.

Hence the terminal constants, the hitting times and the statement that Peri-LN is Pre-LN on another clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from normlab.dynamics.fields import OWN, PAPER, Field, Gain, Stage, inverse_temperature, scheme_field
from normlab.dynamics.flow.scalar import check_scalar, push, scalar
from normlab.errors import ConfigError, UnsupportedError, unknown

DERIVED = "derived here; see docs/dynamics.md, checked against the integrated equation"


@dataclass(frozen=True)
class Oracle:
    """A predicted number and where it comes from."""

    value: float
    formula: str
    source: str


@dataclass(frozen=True)
class Terminal:
    """gamma'(t) ~ constant * shape(t): `law` is "exponential", "stretched" or "power".

    rate      exponential: gamma' ~ C e^{-rate t};  stretched: C e^{-rate sqrt(t+1)} / sqrt(t+1)
    exponent  power: gamma' ~ C / t^exponent
    """

    law: str
    constant: float
    formula: str
    source: str
    rate: float | None = None
    exponent: float | None = None


def _quad(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.integrate import quad

    return float(quad(function, low, high, epsabs=1e-14, epsrel=1e-13, limit=400)[0])


def _exp(x: float) -> float:
    """e^x, infinite where it does not fit: at a large beta a stream outgrows every push, and constants with it."""
    return math.exp(x) if x < 709.0 else math.inf


def _stage(row: Field) -> Stage:
    if not isinstance(row.last, Stage):
        raise UnsupportedError(f"{row.name} is a scheme of your own: closed forms exist only for the rows of the table")
    return row.last


# -- the beginning -------------------------------------------------------------------------------------------------
def initial_velocity(scheme: str | Field, *, n: int, beta: float, r0: float = 1.0) -> Oracle:
    """gamma'(0) from an orthogonal start (arXiv 2510.22026, Table 2)."""
    row = scheme_field(scheme)
    check_scalar(n, beta, r0, 0.0)
    first = row.stages[0][1]
    if not isinstance(first, Stage):
        raise UnsupportedError(f"{row.name} is a scheme of your own: its initial velocity has no closed form here")
    beta = inverse_temperature(first, 0.0, beta)
    over = math.exp(beta) + n - 1
    text = "2 c(0) / (e^beta + n - 1)"
    if first.branch == "unit":
        over = math.sqrt(math.exp(2 * beta) + n - 1)
        text = "2 c(0) / sqrt(e^(2 beta) + n - 1)"
    value = 2.0 * first.gain(0.0) / over
    if first.stream == "free":
        value, text = value / r0, text + " / r0"
    return Oracle(value, text, "arXiv 2510.22026, Table 2" if row.source == PAPER else OWN)


def initial_bound(n: int, d: int) -> Oracle:
    """Theorem 4.2, up to its constant: beta = 1 and a uniform start give |A_j| <= C (sqrt(log n / n) + log n / d)."""
    value = math.sqrt(math.log(n) / n) + math.log(n) / d
    return Oracle(value, "sqrt(log n / n) + log n / d", "arXiv 2510.22026, Theorem 4.2")


def typical_push(n: int, d: int, beta: float = 1.0) -> Oracle:
    """|A| to leading order for a uniform start: a drift e^beta/n + beta/d along theta, and n random terms."""
    drift = (math.exp(beta) + (n - 1) * beta / d) / (n - 1 + math.exp(beta))
    noise = 1.0 / n * math.exp(beta * beta / d)
    return Oracle(math.sqrt(drift**2 + noise), "sqrt((e^b/n + b/d)^2 + e^{b^2/d}/n)", DERIVED)


# -- the curve and the clocks ---------------------------------------------------------------------------------------
def _shared(e: float, n: int, beta: float) -> float:
    return math.expm1(beta * e) / e / (1.0 + (n - 1) * (1.0 - e)) if e > 0 else beta / n


def _curve_integral(n: int, beta: float, low: float, high: float) -> float:
    return _quad(lambda e: _shared(e, n, beta), low, high)


def radius_at(gamma: float, *, n: int, beta: float, r0: float = 1.0, gamma0: float = 0.0) -> Oracle:
    """r when the cosine is gamma, on the curve shared by every scheme whose stream grows."""
    low, high = 1.0 - gamma, 1.0 - gamma0
    value = r0 * math.sqrt(high / low * _exp(_curve_integral(n, beta, low, high)))
    return Oracle(value, "r0 sqrt((e0/e) exp J(e, e0))", DERIVED)


def _post_constant(n: int, beta: float) -> float:
    """C of e^{-2 S} for an unnormalised branch on the sphere; partial fractions of dS leave n exp J(0, 1)."""
    return 2.0 * n * _exp(_curve_integral(n, beta, 0.0, 1.0))


def _ngpt_integrand(e: float, n: int, beta: float) -> float:
    g = 1.0 - e
    grown = math.exp(beta * e)
    square = grown * grown + 2 * (n - 1) * g * grown + (n - 1) * (1 + (n - 2) * g)
    return (math.sqrt(square) / (1 + (n - 1) * g) - 1.0) / e


def _ngpt_constant(n: int, beta: float) -> float:
    # The integrand is 0/0 at e = 0, finite there; start where cancellation is still harmless and add the rest.
    low = 1e-6
    inner = _quad(lambda e: _ngpt_integrand(e, n, beta), low, 1.0)
    slope = _ngpt_integrand(low, n, beta)
    return 2.0 * _exp(inner + low * slope)


def hitting_time(
    scheme: str | Field, gamma: float, *, n: int, beta: float, r0: float = 1.0, gamma0: float = 0.0
) -> Oracle:
    """When the cosine reaches gamma, by quadrature over gamma: no differential equation is solved.

    Exact for every row with one stage whose gain is a power of t + 1 (not Mix-LN, not scaled logits).
    """
    row = scheme_field(scheme)
    check_scalar(n, beta, r0, gamma0)
    stage = _stage(row)
    if len(row.stages) > 1 or stage.logits or stage.heat is not None or not isinstance(stage.gain, Gain):
        raise UnsupportedError(f"the hitting time of {row.name} has no quadrature: its equation depends on time")

    def pace(u: float) -> float:  # d(int c)/d(-u)
        _, size, decay = push(u, n, beta)
        s = float(size) if stage.branch == "unit" else 1.0
        if stage.stream == "free":
            s *= radius_at(-math.expm1(u), n=n, beta=beta, r0=r0, gamma0=gamma0).value
        return s / float(decay)

    clock = _quad(lambda v: pace(-v), -math.log1p(-gamma0), -math.log1p(-gamma))
    p = stage.gain.power + 1.0
    value = (1.0 + clock * p / stage.gain.scale) ** (1.0 / p) - 1.0
    return Oracle(value, "int s (1/gamma')_{s=1} dgamma, inverted through int c dt", DERIVED)


# -- the end --------------------------------------------------------------------------------------------------------
def terminal(scheme: str | Field, *, n: int, beta: float, r0: float = 1.0) -> Terminal:
    """How gamma'(t) dies out from an orthogonal start, with its constant."""
    row = scheme_field(scheme)
    check_scalar(n, beta, r0, 0.0)
    stage = _stage(row)
    if not isinstance(stage.gain, Gain):
        raise UnsupportedError(
            f"{row.name} with a step that varies: gamma' ~ C alpha_t exp(-2 int alpha), so the law is your alpha's"
        )
    if stage.heat is not None:
        raise UnsupportedError(f"{row.name} with a beta that varies: its terminal constant has no closed form")
    if stage.logits:
        raise UnsupportedError(f"{row.name} with scaled logits decays like C/t^2, but its constant has no closed form")
    source = "rate: arXiv 2510.22026, Table 2; constant: derived here" if row.source == PAPER else OWN
    if stage.stream == "free":
        return _power_law(row, stage, source, n=n, beta=beta, r0=r0)
    c, p = stage.gain.scale, stage.gain.power
    base = _ngpt_constant(n, beta) if stage.branch == "unit" else _post_constant(n, beta)
    name = "C_ngpt" if stage.branch == "unit" else "2 n e^I"
    if p == 0.0:
        return Terminal("exponential", base * c, f"{name} c e^(-2 c t), c = {c:g}", source, rate=2.0 * c)
    if p == -0.5:  # S = 2 c (sqrt(t+1) - 1)
        constant = base * c * math.exp(4.0 * c)
        return Terminal("stretched", constant, "2 n e^(I+4) e^(-4 sqrt(t+1)) / sqrt(t+1)", source, rate=4.0 * c)
    raise UnsupportedError(f"no terminal law is stated for a gain (t + 1)^{p:g}")


def _power_law(row: Field, stage: Stage, source: str, *, n: int, beta: float, r0: float) -> Terminal:
    gap = 1.0
    if row.switches:  # the gap at the switch; r has stayed r0
        if len(row.switches) > 1 or not _is_post(row.stages[0][1]):
            raise UnsupportedError(
                f"the terminal constant of {row.name} is known only for Post-LN that turns into Pre-LN"
            )
        tau = row.switches[0]
        start = scalar(Field("post", "", (row.stages[0],)), n=n, beta=beta, time=[0.0, tau], r0=r0)
        gap = float(np.exp(start.log_gap[-1]))
    constant = 2.0 * r0**2 * gap * _exp(_curve_integral(n, beta, 0.0, gap))
    assert isinstance(stage.gain, Gain)
    c, p = stage.gain.scale, stage.gain.power
    # r ~ S(t) ~ c t^(p+1)/(p+1) and gamma' ~ 2 e c(t)/r with 2 e r^2 -> constant.
    constant *= (p + 1.0) ** 3 / c**2
    note = "2 e_tau r0^2 e^J" if row.switches else ("2 r0^2 e^I" if p == 0 else "2 r0^2 e^I / 8")
    return Terminal("power", constant, f"{note} / t^{3 + 2 * p:g}", source, exponent=3.0 + 2.0 * p)


def _is_post(stage: Any) -> bool:
    result: bool = stage == Stage("unit")
    return result


def curve_constant(*, n: int, beta: float, r0: float = 1.0) -> Oracle:
    """lim 2 (1 - gamma) r^2 for every growing stream: converges far faster than gamma' t^3."""
    value = 2.0 * r0**2 * _exp(_curve_integral(n, beta, 0.0, 1.0))
    return Oracle(value, "2 r0^2 e^I", DERIVED)


def variance_rate(scheme: str | Field) -> tuple[str, Callable[[float, float], float], str]:
    """The small-cone law (Theorem 4.3): Var' = -k(t, r) Var; the text of k, k itself, the source.

    To first order in the cone s = r^{free} / c(t), as |A| -> 1, and every difference decays at 1/s.
    """
    stage = _stage(scheme_field(scheme))
    text = f"2 c(t){' / r' if stage.stream == 'free' else ''}"
    source = "arXiv 2510.22026, Theorem 4.3; the constant 2 and nGPT's alpha_t (printed inverted) derived here"
    if stage.stream == "free":
        return text, lambda t, r: 2.0 * stage.gain(t) / r, source
    return text, lambda t, r: 2.0 * stage.gain(t), source


def synchronises(scheme: str | Field, *, n: int, beta: float) -> tuple[str, str]:
    """Theorem 3.1 for Q = K = V = I and almost every start: what is proved for this scheme."""
    row = scheme_field(scheme)
    stage = _stage(row)
    source = (
        "arXiv 2510.22026, Theorem 3.1"
        if row.source == PAPER
        else f"Theorem 3.1 covers the paper's six rows, not {row.name}"
    )
    if row.source != PAPER:
        return "not covered by the theorem", source
    if stage.stream == "unit":
        return "synchronises almost surely", source
    if row.name != "mix_norm" and n <= math.exp(beta):
        return "synchronises almost surely (n <= e^beta)", source
    return "synchronises, or some r' has liminf 0", source


def oracle(what: str, scheme: str | Field | None = None, **setting: Any) -> Any:
    """The closed form called `what`: initial_velocity, terminal, hitting_time, radius_at, curve_constant, ..."""
    table: dict[str, Callable[..., Any]] = {
        "initial_velocity": initial_velocity, "terminal": terminal, "hitting_time": hitting_time,
        "variance_rate": variance_rate, "synchronises": synchronises, "radius_at": radius_at,
        "curve_constant": curve_constant, "initial_bound": initial_bound, "typical_push": typical_push,
    }  # fmt: skip
    if what not in table:
        raise ConfigError(unknown("oracle", what, table))
    return table[what](**setting) if scheme is None else table[what](scheme, **setting)
