"""Seed 003 on the equiangular equation and on closed forms: nothing random enters, so one number is the whole truth."""

from __future__ import annotations

import math

import numpy as np

from normlab.dynamics.fields import Field, heated, scheme_field
from normlab.dynamics.flow.scalar import scalar
from normlab.dynamics.flow.simulate import Setting, simulate
from normlab.dynamics.laws import oracles
from normlab.dynamics.laws.readings import exponent, report
from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.ledger.seed_003 import SIX

N, BETA = 256, 5.0


@measure("terminal-laws", seeds=1, seconds=6)
def terminal_laws(bench: Bench) -> Findings:
    """Rates, exponents and constants at the end, read off the integrated equation and laid over the closed forms."""
    found: list[Measurement] = []
    for scheme in SIX:
        seen = report(scheme, n=N, beta=BETA)
        what = "terminal exponent" if seen.law == "power" else "terminal rate"
        assert seen.constant is not None
        assert seen.constant_theory is not None
        found += [
            number(what, seen.terminal.value, scheme, exact=True),
            number("terminal constant over its closed form", seen.constant / seen.constant_theory, scheme, exact=True),
        ]
    half = report(scheme_field("ngpt", alpha=0.5), n=N, beta=BETA)
    found.append(number("terminal rate", half.terminal.value, "ngpt(alpha=0.5)", exact=True))
    falling = scalar(scheme_field("ngpt", alpha="1/(1+t)"), n=N, beta=BETA, time=_long(2e5))
    read = exponent(falling.t[1:], falling.log_velocity[1:])
    found.append(number("terminal exponent", read.value, "ngpt(alpha=1/(1+t))", exact=True))
    betas = [0.5 * k for k in range(1, 21)]
    ratio = [_first("peri_norm", beta) / _first("post_norm", beta) for beta in betas]
    found.append(number("initial velocity, peri_norm over post_norm, smallest over beta", min(ratio), exact=True))
    settings = {"n": N, "beta": BETA, "betas of the ratio": "0.5 to 10", "tau": 2.5, "start": "orthogonal"}
    return Findings(found, settings)


def _long(end: float) -> np.ndarray:
    return np.concatenate([[0.0], np.geomspace(end * 1e-5, end, 500)])


def _first(scheme: str | Field, beta: float) -> float:
    """The velocity at t = 0, from the equation."""
    return float(scalar(scheme, n=N, beta=beta, time=[0.0, 1e-6]).velocity[0])


@measure("initial-velocity", seeds=1, seconds=6)
def initial_velocity(bench: Bench) -> Findings:
    """The velocity of particles from an orthogonal start over its formula, in three settings."""
    settings = ((256, 5.0, 1.0), (40, 2.0, 1.5), (16, 0.5, 0.7))
    found = []
    for scheme in SIX:
        values = []
        for n, beta, r0 in settings:
            setting = Setting(n=n, d=n, beta=beta, r0=r0, init="symmetric", form="particles", time=3.0, samples=2)
            run = simulate(scheme, setting, time=3.0, relative=1e-3, absolute=1e-5)
            values.append(float(run.gap_rate[0, 0, 0]) / oracles.initial_velocity(scheme, n=n, beta=beta, r0=r0).value)
        found.append(
            curve(
                "initial velocity of particles over its formula", range(3), [values], scheme, axis="setting", exact=True
            )
        )
    return Findings(found, {"n, beta, r0": "; ".join(map(str, settings)), "form": "particles"})


@measure("hitting-times", seeds=1, seconds=3)
def hitting_times(bench: Bench) -> Findings:
    """When the cosine reaches a level."""
    times = {scheme: scalar(scheme, n=N, beta=BETA, time=60.0).hits for scheme in SIX}
    levels = (0.1, 0.5, 0.9, 0.99)
    found = [
        curve("time to a cosine", levels, [[times[s][x] for x in levels]], s, axis="cosine", exact=True) for s in SIX
    ]
    fastest = times["post_norm"][0.99] / min(times[s][0.99] for s in SIX if s != "post_norm")
    slower = times["peri_norm"][0.5] / times["pre_norm"][0.5]
    found.append(number("time to cosine 0.99, post_norm over the fastest other scheme", fastest, exact=True))
    found.append(number("time to cosine 0.5, peri_norm over pre_norm", slower, exact=True))
    return Findings(found, {"n": N, "beta": BETA, "r0": 1.0, "alpha": 1.0, "start": "orthogonal"})


@measure("beta-sweep", seeds=1, seconds=2)
def beta_sweep(bench: Bench) -> Findings:
    """The initial velocity over beta, below and above log n."""
    border = math.log(N)
    below = [0.5, 1.0, 2.0, 3.0, 4.0]
    above = [border + 2.5 + 0.5 * k for k in range(8)]
    arms = {"post_norm, beta below log n": below, "post_norm, beta above log n": above}
    found = [
        curve(
            "initial velocity by beta", betas, [[_first("post_norm", b) for b in betas]], arm, axis="beta", exact=True
        )
        for arm, betas in arms.items()
    ]
    return Findings(found, {"n": N, "log n": round(border, 3)})


@measure("small-cone", seeds=1, seconds=20)
def small_cone(bench: Bench) -> Findings:
    """-Var'/Var at the end of a run from a small cone, over the law 2/s."""
    arms = [*SIX, "ngpt(alpha=0.25)"]
    fields = [scheme_field(name) for name in SIX] + [scheme_field("ngpt", alpha=0.25)]
    setting = Setting(n=32, d=32, beta=2.0, init="cone", angle=0.02, time=3.0, samples=31)
    run = simulate(fields, setting)
    found = []
    for i, (arm, row) in enumerate(zip(arms, fields, strict=True)):
        _, law, _ = oracles.variance_rate(row)
        rate = float(run.gap_rate[i, 0, -1] / run.gap[i, 0, -1])
        stated = law(float(run.t[-1]), float(run.radius[i, 0, -1]))
        found.append(number("rate of the variance over its law", rate / stated, arm, exact=True))
    printed = 2.0 / 0.25
    rate = float(run.gap_rate[-1, 0, -1] / run.gap[-1, 0, -1])
    found.append(number("rate of the variance over the printed law", rate / printed, arms[-1], exact=True))
    return Findings(found, {"n": 32, "d": 32, "beta": 2.0, "angle": 0.02, "t": 3.0})


def rising(t: float) -> float:
    """beta(t) / 5: from 1/5 to 1 over the first quarter of T = 10."""
    return 0.2 + 0.8 * min(t / 2.5, 1.0)


def early_times() -> Measurement:
    """The time to cosine 0.5 with beta(t) over that with beta = 5 held."""
    row = scheme_field("post_norm")
    held = scalar(row, n=N, beta=BETA, time=40.0).hits[0.5]
    risen = scalar(heated(row, rising), n=N, beta=BETA, time=40.0).hits[0.5]
    metric = "time to cosine 0.5, beta rising from 1 over constant beta"
    return number(metric, risen / held, "post_norm", exact=True)
