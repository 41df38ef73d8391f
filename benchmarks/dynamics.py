"""The simulator against a straightforward RK4 in numpy of the same equation, at equal accuracy; growth in n and in d.

n = 256, d = 512, T = 10, the paper's six schemes, 8 seeds, Q = K = V = I. RK4 keeps every token in R^d and refines its
step until its largest error in the mean cosine is no larger than ours. Ours then integrates the n x n Gram form with
DOP853. Each pair of runs is one round, the order alternating, and the ratio is taken within a round. RK4's steps all
cost the same, so it is timed over a sixteenth of them and the time is multiplied by sixteen. Seconds are those of the
processor, on one thread (set OMP_NUM_THREADS=1): a busy machine stretches the clock on the wall, not these.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import arguments
from normlab.dynamics import PAPER_SIX, scheme_field, simulate
from normlab.dynamics.flow.starts import uniform
from normlab.report import console, progress, table

N, D, T, BETA, SAMPLES = 256, 512, 10.0, 1.0, 11
PART = 16


def rk4(name: str, theta: np.ndarray, beta: float, *, steps: int, part: int = 1) -> np.ndarray:
    """The mean cosine at SAMPLES times, written down as one would: theta and r, four evaluations a step."""
    row = scheme_field(name)
    r = np.ones(len(theta))
    tau = row.switches[0] if row.switches else None

    def push(t: float, theta: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        stage = row.stage(t + 1e-9 if tau is not None and abs(t - tau) < 1e-9 else t)
        weights = np.exp(beta * theta @ theta.T)
        weights /= weights.sum(1, keepdims=True)
        a = weights @ theta
        along, size = (theta * a).sum(1), np.linalg.norm(a, axis=1)
        s = np.broadcast_to(stage.slowness(t, r, size), r.shape)
        return (a - along[:, None] * theta) / s[:, None], stage.growth(t, along, size)

    h, found, every = T / steps, [_cosine(theta)], steps // (SAMPLES - 1)
    for step in range(steps // part):
        t = step * h
        # Inside a step that ends at the switch, the stage before it is in force.
        late = t + h - (1e-7 if tau is not None and abs(t + h - tau) < 1e-9 else 0.0)
        a1, b1 = push(t, theta, r)
        a2, b2 = push(t + h / 2, theta + h / 2 * a1, r + h / 2 * b1)
        a3, b3 = push(t + h / 2, theta + h / 2 * a2, r + h / 2 * b2)
        a4, b4 = push(late, theta + h * a3, r + h * b3)
        theta = theta + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        theta = theta / np.linalg.norm(theta, axis=1, keepdims=True)
        r = r + h / 6 * (b1 + 2 * b2 + 2 * b3 + b4)
        if (step + 1) % every == 0:
            found.append(_cosine(theta))
    return np.array(found)


def _cosine(theta: np.ndarray) -> float:
    n = len(theta)
    return (float(np.sum(theta.sum(0) ** 2)) - n) / (n * (n - 1))


def ours(name: str, seed: int, relative: float, **changes: Any) -> np.ndarray:
    setting = {"n": N, "d": D, "beta": BETA, "time": T, "samples": SAMPLES, "seeds": (seed,), **changes}
    return simulate(name, relative=relative, absolute=relative * 1e-2, levels=(), **setting).cosine[0, 0]


def equal_steps(name: str, seed: int, relative: float) -> tuple[int, float, float]:
    """How many RK4 steps reach our error, and both errors, against a run that is far tighter."""
    truth = ours(name, seed, 1e-12)
    mine = float(np.abs(ours(name, seed, relative) - truth).max())
    theta = uniform(N, D, seed)
    steps = 160
    while True:
        error = float(np.abs(rk4(name, theta, BETA, steps=steps) - truth).max())
        if error <= mine or steps >= 4000:
            return steps, mine, error
        # Fourth order: the factor that is missing, less a tenth so that it is not overshot, in multiples of 40.
        steps = max(steps + 40, 40 * int(0.9 * steps * (error / mine) ** 0.25 / 40))


def seconds(rhs: Callable[..., Any], y: np.ndarray) -> float:
    start = time.process_time()
    rhs(0.0, y)
    return time.process_time() - start


def race(relative: float, seeds: range, *, quiet: bool, names: tuple[str, ...] = PAPER_SIX) -> list[dict[str, Any]]:
    rows = []
    for name in progress(names, what=f"schemes at rtol {relative:g}", quiet=quiet):
        steps, mine, theirs = equal_steps(name, 0, relative)
        pairs = [one_round(name, seed, relative, steps) for seed in seeds]
        row = {"scheme": name, "our error": mine, "RK4 steps": steps, "RK4 error": theirs}
        fast, ratio = statistics.median(a for a, _ in pairs), statistics.median(b / a for a, b in pairs)
        rows.append({**row, "seconds": fast, "times faster": ratio})
    return rows


def one_round(name: str, seed: int, relative: float, steps: int) -> tuple[float, float]:
    """Seconds of ours and of RK4, one right after the other; who goes first alternates with the seed."""
    theta = uniform(N, D, seed)
    took = {}
    for who in ("ours", "rk4") if seed % 2 else ("rk4", "ours"):
        start = time.process_time()
        if who == "ours":
            ours(name, seed, relative)
        else:
            rk4(name, theta, BETA, steps=steps, part=PART)
        took[who] = time.process_time() - start
    return took["ours"], took["rk4"] * PART


def growth(sizes: list[int], *, quiet: bool) -> list[dict[str, Any]]:
    """Seconds of one right hand side, by n: the Gram form (n^3 product) and particles (n^2 d)."""
    from normlab.dynamics.flow.gram import GramSystem
    from normlab.dynamics.flow.particles import ParticleSystem
    from normlab.dynamics.flow.weights import Draw

    rows = []
    for n in progress(sizes, what="sizes", quiet=quiet):
        row: dict[str, Any] = {"n": n}
        for d in (64, 512):
            theta = uniform(n, d, 0)[None]
            gram = GramSystem([scheme_field("peri")], n, BETA)
            full = ParticleSystem([scheme_field("peri")], [0], n, BETA, Draw("identity", d))
            for label, system in (("gram", gram), ("particles", full)):
                y, rhs = system.pack(theta, np.ones((1, n))), system.rhs_from(0.0)
                rhs(0.0, y)
                repeat = max(3, min(30, 2 * 10**8 // n**3))
                row[f"{label}, d = {d}"] = statistics.median(seconds(rhs, y) for _ in range(repeat))
        rows.append(row)
    return rows


def slope(rows: list[dict[str, Any]], key: str, *, start: int = 512) -> float:
    points = [(math.log(row["n"]), math.log(row[key])) for row in rows if row["n"] >= start]
    return float(np.polyfit(*zip(*points, strict=True), 1)[0])


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Growth in n beside the n^2 d and n^3 lines."""
    from normlab.report import Page

    data = [
        {"x": [r["n"] for r in rows], "y": [r[key] for r in rows], "name": key, "type": "scatter"}
        for key in rows[0] if key != "n"
    ]  # fmt: skip
    last = rows[-1]
    for label, power, key in (("n^3", 3, "gram, d = 512"), ("n^2 d", 2, "particles, d = 512")):
        y = [last[key] * (r["n"] / last["n"]) ** power for r in rows]
        data.append({"x": [r["n"] for r in rows], "y": y, "name": label, "type": "scatter", "line": {"dash": "dot"}})
    axes = {"xaxis": {"type": "log", "title": {"text": "n"}}, "yaxis": {"type": "log", "title": {"text": "seconds"}}}
    page = Page("Cost of one right hand side")
    page.figure(
        {"data": data, "layout": axes}, caption="Gram form and particles, with the n^2 d and n^3 lines.", height=460
    )
    page.table(rows, name="growth")
    page.write(path)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument(
        "--tolerance", type=float, default=1e-9, help="our relative tolerance (1e-9 is the default of the simulator)"
    )
    parser.add_argument("--part", choices=["race", "growth", "all"], default="all")
    parser.add_argument("--plot", default=None, help="write the growth plot as an HTML page here")
    given = parser.parse_args(argv)
    quiet = given.quiet or given.json
    result: dict[str, Any] = {}
    if given.part != "growth":
        rows = race(
            given.tolerance, range(given.rounds or 8), quiet=quiet, names=PAPER_SIX[: 2 if given.quick else None]
        )
        result["race"] = rows
        result["times faster, slowest scheme"] = min(row["times faster"] for row in rows)
    if given.part != "race":
        rows = growth([128, 256, 512, 1024, 2048][: 4 if given.quick else None], quiet=quiet)
        result["growth"] = rows
        result["exponent of n, gram"] = slope(rows, "gram, d = 512")
        result["exponent of n, particles"] = slope(rows, "particles, d = 512")
        if given.plot:
            plot(rows, given.plot)
    if given.json:
        print(json.dumps(result, indent=2))
    elif not given.quiet:
        for key, value in result.items():
            console().print(table(value, title=key) if isinstance(value, list) else f"{key}: {value:.3g}")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
