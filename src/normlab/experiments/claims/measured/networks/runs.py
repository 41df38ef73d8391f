"""What training needs: warm-up, rates, spikes, and how soon a loss is reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, curve, number
from normlab.experiments.claims.networks.models import (
    MASKED_SEEDS,
    NULL_RATES,
    NULL_SEEDS,
    PERI,
    POST,
    PRE,
    RATE_DEPTHS,
    RATE_SEEDS,
    RATE_STEPS,
    RATES,
    SEEDS,
    SMALL_SEEDS,
    SPIKE_SEEDS,
    STEPS,
    WARMUP_SEEDS,
    WARMUPS,
    train,
)  # fmt: skip
from normlab.experiments.claims.networks.stored import best_loss, by_seed, highest_rate, stored_runs
from normlab.experiments.runs.records import FinishedRun, ValidationRecord
from normlab.experiments.stability.analyse import gradient_spikes, judged, top
from normlab.schemes import label

MAP = "stability-12"
MAP_SETTINGS: dict[str, str | int | float | bool] = {"layers": 12, "dim": 32, "steps": 1500, "warm-up": "0 and 500"}
STORED = "from docs/results/stability-12/cells.csv; the commands that made it stand in docs/results/README.md"
SPREAD = "spread of the loss over warm-up lengths"
REACHED = "steps to the reference loss"
MASKED = "masked-LM steps to the reference loss"
SPIKES = "spikes in a run"
BEST, HIGHEST = "best loss", "highest rate that learns"


# -- numbers of runs ----------------------------------------------------------------------------------------------------
def steps_to(curve: Sequence[ValidationRecord], reference: float) -> float:
    """The step at which the held-out loss first reaches the reference, between two records by a straight line; nan: never."""
    before: ValidationRecord | None = None
    for point in curve:
        if point.loss <= reference:
            if before is None or before.loss <= point.loss:
                return float(point.step)
            share = (before.loss - reference) / (before.loss - point.loss)
            return before.step + share * (point.step - before.step)
        before = point
    return math.nan


def spikes(run: FinishedRun) -> int:
    return gradient_spikes([record.grad_norm for record in run.training()])


def cost(runs: Sequence[FinishedRun]) -> float:
    """Seconds that these runs took, whenever that was."""
    return sum(run.summary.seconds for run in runs)


def end(run: FinishedRun) -> float:
    return math.nan if run.loss is None else run.loss


def _of(runs: Sequence[FinishedRun], scheme: str, seed: int, warmup: int | None = None) -> list[FinishedRun]:
    return [
        run
        for run in runs
        if label(run.config.model.scheme) == scheme
        and run.seed == seed
        and warmup in (None, run.config.train.schedule.warmup)
    ]


# -- evidence -----------------------------------------------------------------------------------------------------------
@measure("warmup-map", seeds=3, seconds=1)
def warmup_map(bench: Bench) -> Findings:
    """Best losses over rates, with 500 steps of warm-up and without, from the stored map of 12 layers."""
    found: list[Measurement] = []
    took = 0.0
    for scheme in (POST, PRE):
        for steps, words in ((0, "no warm-up"), (500, "warm-up")):
            lines = by_seed(stored_runs(MAP, scheme=scheme, warmup=steps))
            kept = [best_loss(runs) for seed, runs in lines.items() if seed in bench.seeds]
            took += sum(run.seconds for runs in lines.values() for run in runs)
            found.append(number(BEST, kept, f"{scheme}, {words}"))
    return Findings(found, MAP_SETTINGS, (STORED,), seconds=took)


@measure("rates-map", seeds=3, seconds=1)
def rates_map(bench: Bench) -> Findings:
    """Highest rates that learn without warm-up, from the same map."""
    found: list[Measurement] = []
    took = 0.0
    for scheme in (PRE, POST):
        lines = by_seed(stored_runs(MAP, scheme=scheme, warmup=0))
        kept = [highest_rate(runs) for seed, runs in lines.items() if seed in bench.seeds]
        took += sum(run.seconds for runs in lines.values() for run in runs)
        found.append(number(HIGHEST, kept, scheme))
    bound = "Pre-Norm learned at every rate that was tried, so that its number is a lower bound"
    return Findings(found, MAP_SETTINGS, (STORED, bound), seconds=took)


@measure("warmup", seeds=WARMUP_SEEDS, seconds=60)
def warmup(bench: Bench) -> Findings:
    """How much the length of warm-up matters, and what it delays: runs of 6 layers."""
    found: list[Measurement] = []
    runs = train(bench.folder.parent / "networks", "warmup", only=lambda c: c.train.seed in bench.seeds)
    lengths = [length for length in WARMUPS if length]
    for scheme in (POST, PRE):
        ends = [[end(_of(runs, scheme, seed, length)[0]) for length in lengths] for seed in bench.seeds]
        found.append(number(SPREAD, [max(row) - min(row) for row in ends], scheme))
        found.append(number("lowest loss over warm-up lengths", [min(row) for row in ends], scheme))
        found += [
            number(f"loss after {length} steps of warm-up", [row[i] for row in ends], scheme)
            for i, length in enumerate(lengths)
        ]
    longest = lengths[2]
    pairs = [(_of(runs, PRE, seed, 0)[0], _of(runs, PRE, seed, longest)[0]) for seed in bench.seeds]
    curves = [(without.validation(), with_.validation()) for without, with_ in pairs]
    references = [max(min(p.loss for p in a), min(p.loss for p in b)) for a, b in curves]  # both get there
    for i, words in enumerate(("no warm-up", "warm-up")):
        steps = [steps_to(both[i], reference) for both, reference in zip(curves, references, strict=True)]
        found.append(number(REACHED, steps, f"{PRE}, {words}"))
    words = f"400 steps of 8 x 32, constant rates; steps to a loss: with 0 and {longest} of warm-up"
    return Findings(found, {"layers": 6, "lengths": ", ".join(map(str, WARMUPS))}, (words,), seconds=cost(runs))


@measure("rates", seeds=SEEDS, seconds=100)
def rates(bench: Bench) -> Findings:
    """Steps to Post-Norm's final loss, from the shared networks: each scheme at its best rate of the stored map."""
    found: list[Measurement] = []
    runs = train(
        bench.folder.parent / "networks",
        "models",
        only=lambda c: c.train.seed in bench.seeds and label(c.model.scheme) in (PRE, POST),
    )
    curves = {s: [_of(runs, s, seed)[0].validation() for seed in bench.seeds] for s in (PRE, POST)}
    references = [min(point.loss for point in curve) for curve in curves[POST]]
    for scheme in (PRE, POST):
        steps = [steps_to(curve, ref) for curve, ref in zip(curves[scheme], references, strict=True)]
        found.append(number(REACHED, steps, scheme))
        ends = [end(_of(runs, scheme, seed)[0]) for seed in bench.seeds]
        found.append(number("held-out loss at the end", ends, scheme))
    words = "the reference loss is the lowest that Post-Norm reaches in the same seed"
    return Findings(found, {"layers": 12, "steps": STEPS}, (words,), seconds=cost(runs))


@measure("rates-by-depth", seeds=RATE_SEEDS, seconds=660)
def rates_by_depth(bench: Bench) -> Findings:
    """The highest rate at which each scheme learns, by depth, without warm-up.

    Where Post-Norm learns at none, the lowest that was tried stands in for it: the ratio is then a lower bound.
    """
    runs = train(bench.folder.parent / "networks", "rates", only=lambda c: c.train.seed in bench.seeds)
    highest = {
        scheme: [[_highest(runs, scheme, seed, depth) for depth in RATE_DEPTHS] for seed in bench.seeds]
        for scheme in (PRE, POST)
    }
    learns = [[float(not math.isnan(rate)) for rate in row] for row in highest[POST]]
    bounded = {
        PRE: highest[PRE],
        POST: [[min(RATES[POST]) if math.isnan(rate) else rate for rate in row] for row in highest[POST]],
    }
    ratios = [[a / b for a, b in zip(*rows, strict=True)] for rows in zip(bounded[PRE], bounded[POST], strict=True)]
    found = [curve("highest rate of pre_norm over post_norm", RATE_DEPTHS, ratios, axis="layers")]
    found.append(curve("learns at some rate", RATE_DEPTHS, learns, POST, axis="layers"))
    for scheme, rows in bounded.items():
        found.append(curve(f"{HIGHEST} by depth", RATE_DEPTHS, rows, scheme, axis="layers"))
        found.append(number(f"{HIGHEST}, 24 layers", [row[-1] for row in rows], scheme))
    never = sum(1 - known for row in learns for known in row)
    words = (
        f"Post-Norm learns at no rate in {never:g} of {sum(map(len, learns))} cases: there its lowest rate stands in."
    )
    return Findings(found, {"steps": RATE_STEPS, "warm-up": 0}, (words,), seconds=cost(runs))


def _highest(runs: Sequence[FinishedRun], scheme: str, seed: int, depth: int) -> float:
    mine = [run for run in _of(runs, scheme, seed) if run.config.model.depth == depth]
    found, _ = top({run.lr: judged(run).learned for run in mine})
    return math.nan if found is None else found


@measure("spikes", seeds=SPIKE_SEEDS, seconds=20)
def spikes_without_warmup(bench: Bench) -> Findings:
    runs = train(bench.folder.parent / "networks", "spikes", only=lambda c: c.train.seed in bench.seeds)
    found: list[Measurement] = []
    for depth in (12, 2):
        mine = [run for run in runs if run.config.model.depth == depth]
        for scheme in (POST, PRE):
            counts = [spikes(_of(mine, scheme, seed)[0]) for seed in bench.seeds]
            found.append(number(SPIKES, [float(count) for count in counts], f"{scheme}, {depth} layers"))
    for scheme in (POST, PRE):
        lines = by_seed(stored_runs(MAP, scheme=scheme, warmup=0)).values()
        counts_of = [statistics.fmean(run.gradient_spikes for run in line) for line in lines]
        found.append(number(SPIKES, counts_of, f"{scheme}, 12 layers, stored map"))
    words = "a spike is a gradient norm of more than four times the median of the twenty steps before it"
    return Findings(found, {"steps": 400, "warm-up": 0}, (words,), seconds=cost(runs))


@measure("small-stability", seeds=SMALL_SEEDS, seconds=14)
def small_stability(bench: Bench) -> Findings:
    runs = train(bench.folder.parent / "networks", "small", only=lambda c: c.train.seed in bench.seeds)
    found: list[Measurement] = []
    for scheme in (PRE, POST, PERI):
        lines = [_of(runs, scheme, seed) for seed in bench.seeds]
        found.append(number(f"{SPIKES} of 2 layers", [statistics.fmean(map(spikes, line)) for line in lines], scheme))
        bad = [float(sum(run.summary.status != "finished" for run in line)) for line in lines]
        found.append(number("runs that diverged", bad, scheme))
    return Findings(
        found,
        {"layers": 2, "steps": 400, "warm-up": 0, "rates": "0.001, 0.004, 0.016", "recipe": "authors"},
        seconds=cost(runs),
    )


@measure("masked-lm", seeds=MASKED_SEEDS, seconds=60)
def masked_lm(bench: Bench) -> Findings:
    """Encoders on masked bytes: Post-Norm at the better of two rates (by its final loss), Pre-Norm at one."""
    runs = train(bench.folder.parent / "networks", "masked", only=lambda c: c.train.seed in bench.seeds)
    post = [min(_of(runs, POST, seed), key=end) for seed in bench.seeds]
    pre = [_of(runs, PRE, seed)[0] for seed in bench.seeds]
    references = [min(point.loss for point in run.validation()) for run in post]
    found, never = [], 0
    for chosen, arm in ((pre, f"{PRE}, no warm-up"), (post, f"{POST}, warm-up")):
        steps = [steps_to(run.validation(), ref) for run, ref in zip(chosen, references, strict=True)]
        never += sum(map(math.isnan, steps))
        whole = [run.summary.step for run in chosen]
        counted = [float(all_) if math.isnan(s) else s for s, all_ in zip(steps, whole, strict=True)]
        found.append(number(MASKED, counted, arm))
    found += [
        number("held-out loss at the end", [end(r) for r in chosen], arm) for chosen, arm in ((pre, PRE), (post, POST))
    ]
    return Findings(
        found,
        {"layers": 6, "dim": 32, "steps": 800, "batch": 16, "length": 32, "masked": 0.15},
        (f"Runs that never reach the reference: {never}. They count with all their steps, which is too few.",),
        seconds=cost(runs),
    )


# -- nulls: many seeds of Pre-Norm --------------------------------------------------------------------------------------
def null_runs(bench: Bench) -> list[FinishedRun]:
    return train(bench.folder.parent / "networks", "null")


@measure("null-best-loss", seeds=NULL_SEEDS, seconds=12)
def null_best_loss(bench: Bench) -> Findings:
    return Findings([number(BEST, [end(run) for run in null_runs(bench)], PRE)], {"steps": 300})


@measure("null-spikes-in-a-run", seeds=NULL_SEEDS, seconds=12)
def null_spikes(bench: Bench) -> Findings:
    return Findings([number(SPIKES, [float(spikes(run)) for run in null_runs(bench)], PRE)], {"steps": 300})


@measure("null-spikes-in-a-run-of-2-layers", seeds=NULL_SEEDS, seconds=3)
def null_small_spikes(bench: Bench) -> Findings:
    counts = [statistics.fmean(map(spikes, line)) for line in _small_null(bench, warmup=0)]
    return Findings([number(f"{SPIKES} of 2 layers", counts, POST)], {"steps": 120})


@measure("null-highest-rate-that-learns", seeds=NULL_SEEDS, seconds=3)
def null_highest(bench: Bench) -> Findings:
    """The lowest rate of all learns by assumption, so that every seed has a number."""
    values = []
    for line in _small_null(bench, warmup=0):
        found, _ = top({run.lr: judged(run).learned for run in line})
        values.append(found or min(NULL_RATES) / 4)
    return Findings([number(HIGHEST, values, POST)], {"steps": 120})


@measure("null-spread-of-the-loss-over-warm-up-lengths", seeds=NULL_SEEDS, seconds=3)
def null_spread(bench: Bench) -> Findings:
    lines = [[end(run) for run in line] for line in _small_null(bench, lr=NULL_RATES[0])]
    return Findings([number(SPREAD, [max(line) - min(line) for line in lines], POST)], {"steps": 120})


def _small_null(bench: Bench, *, warmup: int | None = None, lr: float | None = None) -> list[list[FinishedRun]]:
    """The runs of each seed with this warm-up, or at this rate."""
    runs = train(bench.folder.parent / "networks", "small-null")
    kept = [r for r in runs if lr in (None, r.lr) and warmup in (None, r.config.train.schedule.warmup)]
    return [[r for r in kept if r.seed == seed] for seed in sorted({r.seed for r in runs})]


@measure("null-steps-to-the-reference-loss", seeds=NULL_SEEDS, seconds=12)
def null_steps(bench: Bench) -> Findings:
    return Findings([number(REACHED, _steps(null_runs(bench)), PRE)], {"steps": 300})


@measure("null-masked-lm-steps-to-the-reference-loss", seeds=NULL_SEEDS, seconds=2)
def null_masked_steps(bench: Bench) -> Findings:
    runs = train(bench.folder.parent / "networks", "masked-null")
    return Findings([number(MASKED, _steps(runs), PRE)], {"layers": 2, "steps": 200}, seconds=cost(runs))


def _steps(runs: Sequence[FinishedRun]) -> list[float]:
    """To the highest of the final losses, which every seed reaches."""
    curves = [run.validation() for run in runs]
    reference = max(min(point.loss for point in curve) for curve in curves)
    return [steps_to(curve, reference) for curve in curves]
