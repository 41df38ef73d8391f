"""What finished runs say about stability: every run judged, every edge bracketed, and the field's claim about warm-up.

`CRITERIA` says when a run is unstable, flat or stable. A point (scheme, depth, warm-up, rate) is stable, or has learned,
if all its seeds are or have.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from normlab.errors import InputError
from normlab.experiments.runs.records import FinishedRun
from normlab.experiments.stability.result import (
    Bracket,
    ClaimOverSeeds,
    Edges,
    JudgedRun,
    Point,
    Region,
    StabilityMap,
    WarmupLine,
)
from normlab.model import TransformerConfig
from normlab.stats import paired

CRITERIA = {
    "nan": "a loss or gradient is not finite, or the loop gave up (loss far above chance for many steps)",
    "above": "the median training loss of the last window lies above the first step's loss",
    "spike": "that median lies above the lowest window's by more than a quarter of the whole descent: a spike, or a slow "
    "rise, that did not come back",
    "flat": "none of these three, so it is stable; but its held-out loss is not below the entropy of single tokens there, "
    "which no model that ignores the context can beat: nothing was learned but frequencies",
    "stable": "none of these. A window is a twentieth of the run, at least 5 steps; rises of less than a hundredth of the "
    "first loss, or three standard errors of the first batch's, are noise",
}
LOST = 0.25
NOISE = 0.01  # batches differ: a rate too small to move the loss must not look like a rise
SPIKE = 4.0  # a gradient norm this many times the median of the steps before it
USABLE = 0.1  # nats above the best loss of the scheme
NEEDS = {"post_norm": True, "pre_norm": False}  # what the field says of warm-up at depth


# -- one run ----------------------------------------------------------------------------------------------------------
def judge(losses: Sequence[float | None], status: str = "finished", *, noise: float = 0.0) -> str:
    """stable, nan, above or spike, from the training loss of every step; `noise`: of the first step's batch, in nats."""
    if status == "diverged" or not losses or any(value is None or not math.isfinite(value) for value in losses):
        return "nan"
    known = [float(value) for value in losses if value is not None]
    size = max(5, len(known) // 20)
    windows = [statistics.median(known[i : i + size]) for i in range(0, max(1, len(known) - size + 1), size)]
    start, last, lowest = known[0], statistics.median(known[-size:]), min(windows)
    noise = max(NOISE * start, noise)
    if last > start + noise:
        return "above"
    return "spike" if last > lowest + max(LOST * (start - lowest), noise) else "stable"


def gradient_spikes(norms: Sequence[float | None], *, before: int = 20) -> int:
    """Steps whose gradient norm is more than SPIKE times the median of the `before` steps in front of them."""
    count = 0
    for i in range(5, len(norms)):
        past = [n for n in norms[max(0, i - before) : i] if n is not None]
        now = norms[i]
        count += now is None or (bool(past) and now > SPIKE * statistics.median(past))
    return count


def judged(run: FinishedRun) -> JudgedRun:
    records = run.training()
    found = judge([r.loss for r in records], run.summary.status, noise=_first_batch_noise(run))
    flat = found == "stable" and run.floor is not None and (run.loss is None or run.loss >= run.floor)
    spikes = gradient_spikes([r.grad_norm for r in records])
    return JudgedRun.judged(run, verdict="flat" if flat else found, gradient_spikes=spikes)


def _first_batch_noise(run: FinishedRun) -> float:
    """Three standard errors of a batch's loss before training. At the fair start the loss of a token has a standard deviation
    of 1.1 to 2.1 nats (widths 16 to 128, bytes); at the old one all tokens cost the same."""
    model, train = run.config.model, run.config.train
    fair = isinstance(model, TransformerConfig) and model.start == "fair"
    return 3 * 2.0 / math.sqrt(train.batch * train.length) if fair else 0.0


# -- edges ------------------------------------------------------------------------------------------------------------
def bracket(good: Mapping[float, bool]) -> Bracket:
    """(highest good rate below the first bad one, that bad one): where stability ends."""
    bad = [rate for rate in sorted(good) if not good[rate]]
    above = bad[0] if bad else None
    fine = [rate for rate in good if good[rate] and (above is None or rate < above)]
    return (max(fine) if fine else None), above


def top(good: Mapping[float, bool]) -> Bracket:
    """(highest good rate, next rate that was tried): where learning ends. Rates far below it learn nothing either."""
    fine = [rate for rate in good if good[rate]]
    if not fine:
        return None, None
    return max(fine), min((rate for rate in good if rate > max(fine)), default=None)


# -- the map ----------------------------------------------------------------------------------------------------------
def analyse(runs: Sequence[FinishedRun], *, notes: Sequence[str] = ()) -> StabilityMap:
    """The map from finished runs: every run, every point, and per scheme and depth the widest stable region."""
    if not runs:
        raise InputError("no finished run was found; run the sweep first, or look at its failure.json files")
    rows, settings = [judged(run) for run in runs], [_setting(run) for run in runs]
    groups: dict[tuple[int, str, str], list[JudgedRun]] = defaultdict(list)
    for row, setting in zip(rows, settings, strict=True):
        groups[row.depth, row.scheme, setting].append(row)
    names = _names(settings, runs)
    regions = [_region(found, names[setting]) for (_, _, setting), found in sorted(groups.items())]
    return StabilityMap(
        notes=list(notes), criteria=CRITERIA, regions=regions, claims=_claims(regions),
        statements=[_sentence(region) for region in regions], cells=rows,
    )  # fmt: skip


def _setting(run: FinishedRun) -> str:
    """What the lines of one map share: all but scheme, depth, warm-up, rate and seed."""
    values = json.loads(run.config.setting())
    del values["model"]["depth"], values["train"]["schedule"]
    return json.dumps({**values, "data": run.data}, sort_keys=True)


def _names(settings: Sequence[str], runs: Sequence[FinishedRun]) -> dict[str, str]:
    """What tells merged maps apart, in words: nothing where there is one."""
    found = {setting: run.config for setting, run in zip(settings, runs, strict=True)}
    if len(found) == 1:
        return dict.fromkeys(found, "")
    words = {
        s: f"width {c.model.dim}, {c.train.steps} steps of {c.train.batch} x {c.train.length}" for s, c in found.items()
    }
    same = len(set(words.values())) < len(words)
    return {s: f"{word}, map {i}" if same else word for i, (s, word) in enumerate(sorted(words.items()), 1)}


def _region(rows: Sequence[JudgedRun], name: str) -> Region:
    lines = [
        _line(warmup, [row for row in rows if row.warmup == warmup]) for warmup in sorted({row.warmup for row in rows})
    ]
    best = min((line.best_loss for line in lines if line.best_loss is not None), default=math.inf)
    for i, line in enumerate(lines):
        near = [p.lr for p in line.points if p.loss is not None and p.loss <= best + USABLE]
        lines[i] = replace(line, usable=(min(near), max(near)) if near else None)
    first, widest = rows[0], max(lines, key=lambda line: (line.edge or 0.0, -line.warmup))
    return Region(
        scheme=first.scheme, depth=first.depth, map=name, steps=first.steps, warmups=lines, widest=widest.warmup,
        context_free_loss=first.context_free_loss, learned=any(row.learned for row in rows),
    )  # fmt: skip


def _line(warmup: int, rows: Sequence[JudgedRun]) -> WarmupLine:
    points = [_point(lr, [row for row in rows if row.lr == lr]) for lr in sorted({row.lr for row in rows})]
    below, above = bracket({p.lr: p.stable for p in points})
    seeds = {seed: [row for row in rows if row.seed == seed] for seed in sorted({row.seed for row in rows})}
    return WarmupLine(
        warmup=warmup, edge=below, unstable_from=above, points=points,
        learns_up_to=top({p.lr: p.learned for p in points})[0],
        best_loss=min((p.loss for p in points if p.loss is not None), default=None),
        lowest=min(p.lr for p in points),
        stable_edges=_edges({s: bracket({r.lr: r.stable for r in own}) for s, own in seeds.items()}),
        learning_edges=_edges({s: top({r.lr: r.learned for r in own}) for s, own in seeds.items()}),
        best_per_seed={
            s: min((r.loss for r in own if r.stable and r.loss is not None), default=None) for s, own in seeds.items()
        },
    )  # fmt: skip


def _edges(found: Mapping[int, Bracket]) -> Edges:
    closed = {seed: (low, high) for seed, (low, high) in found.items() if low is not None and high is not None}
    return Edges(
        per_seed={seed: closed[seed][0] if seed in closed else None for seed in found},
        none=[seed for seed, (low, _) in found.items() if low is None],
        octaves=max((math.log2(high / low) for low, high in closed.values()), default=0.0),
    )


def _point(lr: float, runs: Sequence[JudgedRun]) -> Point:
    losses = [run.loss for run in runs if run.stable and run.loss is not None]
    fine = len(losses) == len(runs)
    return Point(
        lr=lr, stable=fine, learned=all(run.learned for run in runs), unstable_seeds=len(runs) - len(losses),
        seeds=len(runs), loss=statistics.fmean(losses) if fine else None,
        verdicts=sorted({run.verdict for run in runs}),
        gradient_spikes=statistics.fmean(run.gradient_spikes for run in runs),
    )  # fmt: skip


# -- sentences --------------------------------------------------------------------------------------------------------
def _sentence(region: Region) -> str:
    lines, widest = region.warmups, region.widest_line
    name = f"{region.scheme} at {region.depth} layers{region.which}"
    if widest.edge is None:
        return f"{name}: no stable learning rate was found."
    edges = ", ".join(f"{_show(line.edge)} with {line.warmup} steps" for line in lines)
    losses = ", ".join(f"{_show(line.best_loss)}" for line in lines)
    bound = "" if widest.unstable_from is not None else " (nothing unstable was found)"
    said = f"{name}: stable up to a learning rate of {edges} of warm-up{bound}"
    if not region.learned:
        return (
            f"{said}; but no run got below the {_show(region.context_free_loss)} nats of single tokens (best {losses}): "
            "nothing was learned, so this says little about stability."
        )
    learned = ", ".join(_show(line.learns_up_to) for line in lines)
    return f"{said}; the highest rates at which it learns are {learned}, the best losses {losses}, in the same order."


def _show(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


# -- the claim: Post-Norm needs warm-up at depth and Pre-Norm does not, by three numbers --------------------------------
@dataclass(frozen=True)
class WarmupGain:
    """What the most warm-up gives over none, by one of the three numbers.

    `blur`: how exactly it is known. `bounded`: for some seed only a bound is. `margin`: above it warm-up is needed, below
    it is not.
    """

    number: str
    values: list[float]
    margin: float
    blur: float = 0.0
    bounded: bool = False


def _claims(regions: Sequence[Region]) -> list[ClaimOverSeeds]:
    found = []
    for region in regions:
        first, last = region.warmups[0], region.warmups[-1]
        if region.name in NEEDS and first.warmup == 0 and last.warmup != 0:
            found += [_claim(region, gain) for gain in _gains(first, last)]
    return found


def _gains(first: WarmupLine, last: WarmupLine) -> list[WarmupGain]:
    what = "octaves by which the most warm-up raises"
    best = "nats by which the most warm-up lowers the best loss"
    pairs = {seed: (loss, last.best_per_seed.get(seed)) for seed, loss in first.best_per_seed.items()}
    nats = [a - b for a, b in pairs.values() if a is not None and b is not None]
    return [
        _octaves(f"{what} the highest rate that learns", first, last, first.learning_edges, last.learning_edges),
        _octaves(f"{what} the stable edge", first, last, first.stable_edges, last.stable_edges),
        WarmupGain(best, nats, USABLE),
    ]


def _octaves(number: str, first: WarmupLine, last: WarmupLine, without: Edges, with_: Edges) -> WarmupGain:
    before, after = without.bounded(first.lowest), with_.bounded(last.lowest)
    nowhere = set(without.none) & set(with_.none)
    pairs = [(before[s], after.get(s)) for s in before if s not in nowhere]
    values = [math.log2(b / a) for a, b in pairs if a is not None and b is not None]
    # Edges are known up to their brackets only: a gain must exceed those, and "no gain" must hold at their far end.
    return WarmupGain(number, values, 1.0, max(without.octaves, with_.octaves), bool(without.none or with_.none))


def _claim(region: Region, gain: WarmupGain) -> ClaimOverSeeds:
    test, needs = paired(gain.values), NEEDS[region.name]
    helps = test.significant and test.low is not None and test.low > max(gain.margin, gain.blur)
    useless = test.high is not None and test.high + gain.blur < gain.margin and not gain.bounded
    outcome = "undecided"
    if region.learned and (helps or useless):  # runs that never learn show nothing about what training needs
        outcome = "confirmed" if helps == needs else "refuted"
    where = f"at {region.depth} layers, in {region.steps} steps{region.which}"
    text = f"{region.scheme} {'needs' if needs else 'does not need'} warm-up {where}"
    reason = "" if region.learned else "no run got below the loss of single tokens"
    return ClaimOverSeeds.of(text, gain.number, gain.values, test=test, verdict=outcome, reason=reason)
