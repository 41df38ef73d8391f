"""What training needs: warm-up, rates, spikes, and how soon a loss is reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, number
from normlab.experiments.claims.networks.models import NULL_SEEDS, POST, PRE, WARMUPS, train
from normlab.experiments.claims.networks.stored import best_loss, by_seed, highest_rate, stored_runs
from normlab.experiments.runs.records import FinishedRun, ValidationRecord
from normlab.experiments.stability.analyse import gradient_spikes
from normlab.schemes import label

MAP = "stability-12"
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
@measure("warmup", seeds=5, seconds=60)
def warmup(bench: Bench) -> Findings:
    """Best losses from the stored map of 12 layers; lengths of warm-up, and what it delays, from runs of 6 layers."""
    found: list[Measurement] = []
    for scheme in (POST, PRE):
        for steps, words in ((0, "no warm-up"), (500, "warm-up")):
            lines = by_seed(stored_runs(MAP, scheme=scheme, warmup=steps))
            found.append(number(BEST, [best_loss(runs) for runs in lines.values()], f"{scheme}, {words}"))
    runs = train(bench.folder.parent / "networks", "warmup", only=lambda c: c.train.seed in bench.seeds)
    lengths = [length for length in WARMUPS if length]
    for scheme in (POST, PRE):
        ends = [[end(_of(runs, scheme, seed, length)[0]) for length in lengths] for seed in bench.seeds]
        found.append(number(SPREAD, [max(row) - min(row) for row in ends], scheme))
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
    notes = (
        "best losses: docs/results/stability-12, three seeds, 12 layers, 1500 steps, 0 and 500 of warm-up",
        f"the rest: 6 layers of width 32, 400 steps of 8 x 32, constant rates; steps to a loss: 0 and {longest} of warm-up",
    )
    return Findings(found, {"lengths": ", ".join(map(str, WARMUPS))}, notes)


@measure("rates", seeds=5, seconds=100)
def rates(bench: Bench) -> Findings:
    """Highest rates from the stored map, without warm-up; steps to Post-Norm's final loss from the shared networks."""
    found: list[Measurement] = []
    for scheme in (PRE, POST):
        lines = by_seed(stored_runs(MAP, scheme=scheme, warmup=0))
        found.append(number(HIGHEST, [highest_rate(runs) for runs in lines.values()], scheme))
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
    notes = (
        "highest rates: docs/results/stability-12, three seeds; Pre-Norm learned at every rate tried: a lower bound",
        "the reference loss is the lowest that Post-Norm reaches in the same seed",
    )
    return Findings(found, {"layers": 12, "steps": 1500}, notes)


@measure("spikes", seeds=8, seconds=25)
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
    return Findings(found, {"steps": 400, "warm-up": 0}, (words,))


@measure("masked-lm", seeds=5, seconds=60)
def masked_lm(bench: Bench) -> Findings:
    """Encoders on masked bytes: Post-Norm at the better of two rates (by its final loss), Pre-Norm at one."""
    runs = train(bench.folder.parent / "networks", "masked", only=lambda c: c.train.seed in bench.seeds)
    post = [min(_of(runs, POST, seed), key=end) for seed in bench.seeds]
    pre = [_of(runs, PRE, seed)[0] for seed in bench.seeds]
    references = [min(point.loss for point in run.validation()) for run in post]
    found = [
        number(MASKED, [steps_to(r.validation(), ref) for r, ref in zip(chosen, references, strict=True)], arm)
        for chosen, arm in ((pre, f"{PRE}, no warm-up"), (post, f"{POST}, warm-up"))
    ]
    found += [
        number("held-out loss at the end", [end(r) for r in chosen], arm) for chosen, arm in ((pre, PRE), (post, POST))
    ]
    return Findings(found, {"layers": 6, "dim": 32, "steps": 800, "batch": 16, "length": 32, "masked": 0.15})


# -- nulls: many seeds of Pre-Norm --------------------------------------------------------------------------------------
def null_runs(bench: Bench) -> list[FinishedRun]:
    return train(bench.folder.parent / "networks", "null")


@measure("null-best-loss", seeds=NULL_SEEDS, seconds=12)
def null_best_loss(bench: Bench) -> Findings:
    return Findings([number(BEST, [end(run) for run in null_runs(bench)], PRE)], {"steps": 300})


@measure("null-spikes-in-a-run", seeds=NULL_SEEDS, seconds=12)
def null_spikes(bench: Bench) -> Findings:
    return Findings([number(SPIKES, [float(spikes(run)) for run in null_runs(bench)], PRE)], {"steps": 300})


@measure("null-steps-to-the-reference-loss", seeds=NULL_SEEDS, seconds=12)
def null_steps(bench: Bench) -> Findings:
    return Findings([number(REACHED, _null_steps(bench), PRE)], {"steps": 300})


@measure("null-masked-lm-steps-to-the-reference-loss", seeds=NULL_SEEDS, seconds=12)
def null_masked_steps(bench: Bench) -> Findings:
    """Of the same runs on plain text: the spread over seeds of when a loss is reached."""
    return Findings([number(MASKED, _null_steps(bench), PRE)], {"steps": 300}, ("causal runs on plain text",))


def _null_steps(bench: Bench) -> list[float]:
    """To the highest of the final losses, which every seed reaches."""
    curves = [run.validation() for run in null_runs(bench)]
    reference = max(min(point.loss for point in curve) for curve in curves)
    return [steps_to(curve, reference) for curve in curves]
