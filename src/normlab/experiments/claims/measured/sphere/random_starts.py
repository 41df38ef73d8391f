"""Seed 003 with random starts and random weights: tokens on the sphere, seed by seed."""

from __future__ import annotations

import math

import numpy as np

from normlab.dynamics.experiment import random_figure
from normlab.dynamics.fields import scheme_field
from normlab.dynamics.flow.particles import ParticleSystem
from normlab.dynamics.flow.simulate import Setting, simulate
from normlab.dynamics.flow.starts import unit
from normlab.dynamics.flow.weights import Draw
from normlab.dynamics.laws import energy
from normlab.dynamics.networks.network import layers
from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.ledger.seed_003 import GROWING, SIX

UNIT = ("post_norm", "ngpt", "sqrt_scaling")


@measure("003-01", seeds=10, seconds=4)
def one_equation(bench: Bench) -> Findings:
    """How far the discrete layers are from the flow at the end, for ever smaller steps."""
    setting = Setting(n=12, d=8, beta=2.0, time=4.0, samples=2, seeds=bench.seeds)
    steps = (1 / 8, 1 / 16, 1 / 32, 1 / 64)
    flow = simulate(SIX, setting).gap[:, :, -1]
    miss = [np.abs(layers(SIX, setting, step=step).gap[:, :, -1] - flow) for step in steps]
    by_step = np.stack(miss, axis=-1)
    metric = "distance of discrete layers from the flow by step size"
    found = [curve(metric, steps, by_step[i], scheme, axis="step") for i, scheme in enumerate(SIX)]
    return Findings(found, {"n": 12, "d": 8, "beta": 2.0, "t": 4.0, "start": "uniform"})


@measure("synchronisation", seeds=20, seconds=3)
def synchronisation(bench: Bench) -> Findings:
    """Random starts run to the end: the gap that is left, and how fast norms grow once tokens agree."""
    shape = {"n": 24, "d": 6, "beta": 1.0}
    found: list[Measurement] = []
    run = simulate(UNIT, Setting(time=60.0, samples=2, seeds=bench.seeds, **shape))  # type: ignore[arg-type]
    found += [number("1 - mean cosine at the end", run.gap[i, :, -1].tolist(), s) for i, s in enumerate(UNIT)]
    grown = simulate(GROWING, Setting(time=200.0, samples=201, seeds=bench.seeds, relative=1e-7, **shape))  # type: ignore[arg-type]
    for i, scheme in enumerate(GROWING):
        rate = (grown.radius[i, :, -1] - grown.radius[i, :, -11]) / (grown.t[-1] - grown.t[-11])
        clustered = grown.gap[i, :, -11] < 0.01
        found.append(
            number("growth r' where the tokens have clustered", np.where(clustered, rate, np.nan).tolist(), scheme)
        )
        found.append(number("1 - mean cosine at the end", grown.gap[i, :, -1].tolist(), scheme))
    return Findings(found, {**shape, "t": "60 (unit streams), 200 (growing ones)", "start": "uniform"})


def speeds(schemes: tuple[str, ...], n: int, d: int, seeds: tuple[int, ...]) -> np.ndarray:
    """|theta'| at t = 0 for a uniform start at beta = 1, of shape (schemes, seeds)."""
    setting = Setting(n=n, d=d, beta=1.0, time=1e-6, samples=2, seeds=seeds, relative=1e-2, absolute=1e-2)
    found: np.ndarray = simulate(schemes, setting).speed[:, :, 0]
    return found


@measure("initial-speed", seeds=5, seconds=20)
def initial_speed(bench: Bench) -> Findings:
    """The first step from a random start, over n."""
    schemes = ("post_norm", "pre_norm", "peri_norm", "ngpt")
    ns = (16, 64, 256, 1024)
    seen = np.stack([speeds(schemes, n, 512, bench.seeds) for n in ns], axis=-1)
    found = [curve("initial speed by n", ns, seen[i], scheme, axis="n") for i, scheme in enumerate(schemes)]
    found += [number("initial speed at n = 256", seen[i, :, 2].tolist(), scheme) for i, scheme in enumerate(schemes)]
    bound = [math.log(n) / 512 for n in ns]
    found.append(curve("log n / d", ns, [bound], axis="n", exact=True))
    return Findings(found, {"d": 512, "beta": 1.0, "start": "uniform"})


@measure("speed-ratio", seeds=4, seconds=60)
def speed_ratio(bench: Bench) -> Findings:
    """Peri-Norm's first step over Post-Norm's, over n and over d."""

    def ratio(n: int, d: int) -> np.ndarray:
        post, peri = speeds(("post_norm", "peri_norm"), n, d, bench.seeds)
        return np.asarray(peri / post)

    ns, ds = (16, 64, 256, 1024), (4, 8, 16, 32)
    by_n = np.stack([ratio(n, 2048) for n in ns], axis=-1)
    by_d = np.stack([ratio(2048, d) for d in ds], axis=-1)
    stated_n = [min(2048 / math.log(n), math.sqrt(n / math.log(n))) for n in ns]
    stated_d = [min(d / math.log(2048), math.sqrt(2048 / math.log(2048))) for d in ds]
    least = np.minimum((by_n / stated_n).min(-1), (by_d / stated_d).min(-1))
    found = [
        curve("speed ratio by n at d = 2048", ns, by_n.tolist(), axis="n"),
        curve("speed ratio by d at n = 2048", ds, by_d.tolist(), axis="d"),
        number("speed ratio over min(d / log n, sqrt(n / log n)), smallest of the sweep", least.tolist()),
    ]
    return Findings(found, {"beta": 1.0, "start": "uniform", "arms": "peri_norm over post_norm"})


@measure("random-figure", seeds=8, seconds=18)
def random_weights(bench: Bench) -> Findings:
    """The random-weight figure: when half of the way is done, and where it ends."""
    run = simulate(SIX, random_figure(seeds=len(bench.seeds)), levels=(0.5,))
    found = []
    for i, scheme in enumerate(SIX):
        found.append(number("time to cosine 0.5 with random weights", run.hits[i, :, 0].tolist(), scheme))
        found.append(number("mean cosine at t = 10 with random weights", run.cosine[i, :, -1].tolist(), scheme))
    return Findings(found, {"n": 64, "d": 512, "beta": "sqrt(512)", "t": 10.0, "tau": 2.5, "r0": 1.0})


@measure("null-time-to-cosine-0-5-with-random-weights", seeds=24, seconds=3)
def null_times(bench: Bench) -> Findings:
    """The same for one scheme, many seeds."""
    run = simulate("post_norm", random_figure(seeds=len(bench.seeds)), levels=(0.5,))
    return Findings([number("time to cosine 0.5 with random weights", run.hits[0, :, 0].tolist(), "post_norm")])


@measure("norm-growth", seeds=5, seconds=20)
def norm_growth(bench: Bench) -> Findings:
    """Pre-Norm's discrete layers with the same weights in every layer, and with fresh ones."""
    found = []
    for kind, arm in (("random", "weights held over depth"), ("fresh", "fresh weights")):
        setting = Setting(n=16, d=64, beta=8.0, time=512.0, weights=kind, seeds=bench.seeds)  # type: ignore[arg-type]
        seen = layers("pre_norm", setting).radius[0]
        at = (1, 4, 16, 64, 128, 256, 512)
        found.append(curve("norm of the tokens by layer", at, seen[:, list(at)], arm, axis="layer"))
    return Findings(found, {"n": 16, "d": 64, "beta": 8.0, "layers": 512})


@measure("energy", seeds=5, seconds=8)
def energies(bench: Bench) -> Findings:
    """The energy along runs of every scheme, and its slope by the formula and by a finite difference."""
    setting = Setting(n=24, d=6, beta=3.0, time=8.0, samples=161, seeds=bench.seeds, keep_tokens=True)
    run = simulate(SIX, setting)
    assert run.tokens is not None
    found = []
    for i, scheme in enumerate(SIX):
        falls, slopes = [], []
        for j, seed in enumerate(bench.seeds):
            along = np.array([energy.energy(theta, 3.0) for theta in run.tokens[i, j]])
            falls.append(float(np.max(np.maximum(-np.diff(along), 0.0)) / along.max()))
            slopes.append(_slope_ratio(scheme, run.tokens[i, j, 20], seed))
        found.append(number("largest fall of the energy between samples", falls, scheme))
        found.append(number("slope of the energy over its formula", slopes, scheme))
    return Findings(found, {"n": 24, "d": 6, "beta": 3.0, "t": 8.0, "samples": 161, "start": "uniform"})


def _slope_ratio(scheme: str, theta: np.ndarray, seed: int, *, t: float = 1.0, step: float = 1e-5) -> float:
    """A central difference of the energy along the equation of motion, over the formula; radii are drawn at random."""
    n, d = theta.shape
    radius: np.ndarray = np.random.default_rng([seed, 5]).uniform(0.5, 2.0, (n,))
    system = ParticleSystem([scheme_field(scheme)], [seed], n, 3.0, Draw("identity", d))
    state = system.pack(theta[None], radius[None])
    moved, _ = system.unpack(system.rhs_from(t)(t, state))
    ahead, behind = (energy.energy(unit(theta + sign * step * moved[0]), 3.0) for sign in (1, -1))
    return (ahead - behind) / (2 * step) / energy.slope(scheme, theta, radius, beta=3.0, t=t)
