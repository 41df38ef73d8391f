"""From finished runs to a comparison: best rate per scheme, paired differences, cost, layers. From the disk alone.

Runs are compared within a *setting*: everything but the scheme, the learning rate and the seed is equal.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise

from normlab.errors import InputError
from normlab.experiments.compare.claims import Draft, claims, decay_gaps, settle, shared_seeds
from normlab.experiments.compare.request import pick_baseline
from normlab.experiments.compare.result import (
    MARKS,
    Averaged,
    Comparison,
    DecayGap,
    LayerMeans,
    LossCurve,
    RateRow,
    RunRow,
    SchemeRow,
    SchemeRuns,
    SettingResult,
    SharedSetting,
    scheme_flops,
)
from normlab.experiments.compare.sentences import answer, statement
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.records import FinishedRun, Gaps, LayerRecord
from normlab.experiments.timing import Costs, relative
from normlab.results import as_row
from normlab.schemes.names import label
from normlab.stats import holm, interval, log_parabola, paired
from normlab.surgery.backbone.config import BackboneConfig
from normlab.tasks import Text

TUNING_SEED = 0


def analyse(
    runs: Sequence[FinishedRun], *, baseline: str | None = None, costs: Costs | None = None, notes: Sequence[str] = ()
) -> Comparison:
    """Every setting with its table, statements and claims; and every run. `notes` say what the sweeps lack."""
    if not runs:
        raise InputError("no finished run was found to compare; run the sweep first, or look at its failure.json files")
    groups: dict[str, list[FinishedRun]] = defaultdict(list)
    for run in runs:
        groups[f"{run.config.setting()} {run.data}"].append(run)
    ordered = sorted(groups.values(), key=lambda group: (group[0].config.model.depth, group[0].config.model.dim))
    found = [_compare(_unique(group), baseline, costs or {}) for group in ordered]
    decided = settle([drafts for _, drafts in found])
    settings = [replace(setting, claims=said) for (setting, _), said in zip(found, decided, strict=True)]
    return Comparison(notes=list(notes), settings=settings, cells=[RunRow.of(run) for run in runs])


def _unique(group: Sequence[FinishedRun]) -> list[FinishedRun]:
    """One run per config: merged sweeps may hold the same one twice."""
    return list({run.config.to_json(): run for run in group}.values())


def _compare(group: Sequence[FinishedRun], asked: str | None, costs: Costs) -> tuple[SettingResult, list[Draft]]:
    """One setting, and its claims as they are before those of the other settings are known."""
    schemes: dict[str, list[FinishedRun]] = defaultdict(list)
    for run in group:
        schemes[label(run.config.model.scheme)].append(run)
    own = {name: _scheme_runs(name, found) for name, found in schemes.items()}
    base = pick_baseline(list(own), asked)
    config, floor = group[0].config, group[0].floor
    timed = {name: costs.get((config.setting(), name)) for name in own}
    for name, found in own.items():
        learned = None if floor is None else found.mean is not None and found.mean < floor
        cost = relative(timed[name], timed[base])
        speed = config.tokens_a_step / cost.seconds if cost else found.tokens_per_second
        own[name] = replace(found, learned=learned, cost=cost, tokens_per_second=speed)
    rows = {name: _against(found, own[base]) for name, found in own.items()}
    for name, test in holm({name: found.difference for name, found in rows.items() if name != base}).items():
        rows[name] = replace(rows[name], difference=test)
    # A mean over survivors is no better than a whole one.
    ordered = sorted(rows.values(), key=lambda r: (r.mean is None, r.diverged > 0, 0.0 if r.mean is None else r.mean))
    setting = _setting(config, floor)
    result = SettingResult(
        setting=setting,
        baseline=base,
        schemes=ordered,
        statements={found.scheme: statement(found, rows[base]) for found in ordered},
        claims=[],
        answer=answer(setting, ordered, base),
    )
    return result, claims(rows, config.model.depth)


def _setting(config: RunConfig, floor: float | None) -> SharedSetting:
    model, train = config.model, config.train
    return SharedSetting(
        depth=model.depth, dim=model.dim, heads=model.heads, task=as_row(config.task), steps=train.steps,
        tokens=train.steps * config.tokens_a_step, batch=train.batch, length=train.length,
        warmup=train.schedule.warmup, schedule=train.schedule.kind, decay_start=config.decay_start,
        context_free_loss=floor, recipe=config.recipe, optimizer=train.optimizer, epochs=_epochs(config),
        architecture=model.name if isinstance(model, BackboneConfig) else None,
    )  # fmt: skip


def _epochs(config: RunConfig) -> float | None:
    if not isinstance(config.task, Text):
        return None
    try:
        return config.train.steps * config.tokens_a_step / len(config.task.stream)
    except InputError:  # the file is gone
        return None


def _train_loss(run: FinishedRun) -> float | None:
    records = run.training()
    return _mean([record.loss for record in records[-max(1, len(records) // 10) :]])


def best_rate(runs: Sequence[FinishedRun]) -> tuple[float, list[RateRow]]:
    """The rate with the lowest mean loss over the seeds that every rate was run with, and the table of rates.

    A rate at which any of those seeds diverged is not chosen, unless all are like that.
    """
    rates: dict[float, dict[int, FinishedRun]] = defaultdict(dict)
    for run in runs:
        rates[run.lr][run.seed] = run
    common = set.intersection(*(set(found) for found in rates.values()))
    table = []
    for lr in sorted(rates):
        seeds = sorted(common or rates[lr])
        losses = [rates[lr][seed].loss for seed in seeds]
        known = [loss for loss in losses if loss is not None]
        mean = statistics.fmean(known) if known and len(known) == len(losses) else None
        table.append(RateRow(lr, mean, len(seeds), len(losses) - len(known)))
    able = [(found.mean, found.lr) for found in table if found.mean is not None]
    return (min(able, key=lambda pair: pair[0])[1] if able else table[0].lr), table


def _scheme_runs(name: str, runs: Sequence[FinishedRun]) -> SchemeRuns:
    lr, rates = best_rate(runs)
    index = [rate.lr for rate in rates].index(lr)
    final = sorted((run for run in runs if run.lr == lr), key=lambda run: run.seed)
    losses = {run.seed: run.loss for run in final}
    known = [loss for loss in losses.values() if loss is not None]
    reach = interval(known)
    near = [(rate.lr, rate.mean) for rate in rates[max(index - 1, 0) : index + 2] if rate.mean is not None]
    fit = log_parabola(near) if len(near) == 3 else None
    summaries = [run.summary for run in final]
    first, own_flops = summaries[0], scheme_flops(final[0])
    return SchemeRuns(
        scheme=name, lr=lr, rates=rates, at_edge=_at_edge(index, len(rates)), lr_fit=fit[0] if fit else None,
        lost_at_twice_lr=fit[1] if fit else None, losses=losses, diverged=len(losses) - len(known),
        mean=statistics.fmean(known) if known else None, low=reach[0] if reach else None,
        high=reach[1] if reach else None,
        averaged=Averaged(*(_mean([s.averaged(kind) for s in summaries]) for kind in ("ema", "bema"))),
        # Neither rate nor seed changes the cost: the fastest run is the least disturbed one.
        clock="processor" if all(run.summary.clock == "processor" for run in runs) else "wall",
        tokens_per_second=_over(max, [run.summary.tokens_per_second for run in runs]),
        activation_bytes=first.activation_bytes, peak_bytes=_over(statistics.median, [s.peak_bytes for s in summaries]),
        parameters=first.parameters or 0, scheme_parameters=first.scheme_parameters,
        flops_per_token=None if own_flops is None else (first.flops_per_token or 0.0) + own_flops,
        curve={run.seed: _curve(run) for run in final}, layers={mark: _layers(final, mark) for mark in MARKS},
        per_seed={run.seed: _layer_record(run, "end") for run in final if run.loss is not None},
        at_start={run.seed: _layer_record(run, "start") for run in final if run.loss is not None},
        train=_mean([_train_loss(run) for run in final if run.loss is not None]),
        law=list(final[0].config.model.scheme.growth(final[0].config.model.frame())), period=_period(final[0].config),
    )  # fmt: skip


def _at_edge(index: int, rates: int) -> str | None:
    """Is the best rate the lowest or highest that was tried? Then a better one may lie outside."""
    if rates < 2:
        return None
    return "lowest" if index == 0 else "highest" if index == rates - 1 else None


def _against(own: SchemeRuns, base: SchemeRuns) -> SchemeRow:
    """With the differences to the baseline, seed by seed."""
    differences = {s: (own.losses[s] or 0.0) - (base.losses[s] or 0.0) for s in shared_seeds(own, base)}
    difference = paired(list(differences.values()))
    if own.learned is False and base.learned is False:  # noise around the frequencies of tokens
        difference = replace(difference, p=None)
    reached = [_crossing(own.curve[s], base.curve[s].loss[-1]) for s in differences]
    there = [step for step in reached if step is not None]
    gaps = decay_gaps(own, base)
    return SchemeRow(
        **{f.name: getattr(own, f.name) for f in fields(own)},
        difference=difference,
        without_tuning_seed=paired([value for s, value in differences.items() if s != TUNING_SEED]).mean,
        parameters_ratio=own.parameters / base.parameters if base.parameters else 1.0,
        steps_to_baseline=statistics.fmean(there) if there and len(there) == len(reached) else None,
        reached_baseline=(len(there), len(reached)),
        loss_at_equal_time=_at_equal_time(own),
        decay_gap=DecayGap(paired([gap[-1][1] - gap[0][1] for gap in gaps.values() if len(gap) > 1]), gaps),
    )


def _at_equal_time(own: SchemeRuns) -> float | None:
    """The mean loss at the step where it has trained for as long as the baseline's whole run; None where that is later."""
    if own.cost is None or own.cost.time < 1 or not own.curve:
        return None
    return _mean([_interpolated(curve, curve.step[-1] / own.cost.time) for curve in own.curve.values() if curve.step])


def _interpolated(curve: LossCurve, step: float) -> float | None:
    points = list(zip(curve.step, curve.loss, strict=True))
    for (a, before), (b, after) in pairwise(points):
        if a <= step <= b:
            return before + (after - before) * (step - a) / (b - a)
    return points[0][1] if points and step <= points[0][0] else None


def _crossing(curve: LossCurve, target: float) -> float | None:
    """The first step, interpolated, at which the held-out loss is down to the target."""
    points = list(zip(curve.step, curve.loss, strict=True))
    for i, (step, loss) in enumerate(points):
        if loss <= target:
            if i == 0:
                return float(step)
            before, above = points[i - 1]
            return before + (step - before) * (above - target) / (above - loss)
    return None


def _curve(run: FinishedRun) -> LossCurve:
    records = run.validation()
    return LossCurve([r.step for r in records], [r.loss for r in records], run.config.decay_start)


def _layer_record(run: FinishedRun, mark: str) -> LayerRecord | None:
    wanted = {"start": 0, "middle": run.config.train.steps // 2, "end": run.config.train.steps}[mark]
    return next((record for record in run.layers() if abs(record.step - wanted) <= 1), None)


def _layers(runs: Sequence[FinishedRun], mark: str) -> LayerMeans:
    """Means over seeds, entry by entry; the mixing matrix is the first seed's."""
    records = [found for run in runs if (found := _layer_record(run, mark)) is not None]

    def mean(of: Callable[[LayerRecord], Sequence[float | None] | None]) -> Gaps | None:
        lists = [values for record in records if (values := of(record)) is not None]
        return [_mean(column) for column in zip(*lists, strict=True)] if lists else None

    return LayerMeans(
        magnitude=mean(lambda r: r.magnitude), output=mean(lambda r: r.output), contribution=mean(lambda r: r.contribution),
        token_cosine=mean(lambda r: r.token_cosine), block_influence=mean(lambda r: r.block_influence),
        gradient_share=mean(lambda r: r.gradient_share), skip=mean(lambda r: r.skip), prune=mean(lambda r: r.prune),
        independent=mean(lambda r: r.independent), mixing=records[0].mixing if records else None,
        effect=mean(lambda r: r.effect),
    )  # fmt: skip


def _period(config: RunConfig) -> int | None:
    """Layers a block, for schemes of equal blocks of whole layers."""
    model = config.model
    sizes = getattr(model.scheme, "block_sizes", None)
    branches = len(model.sites())
    found = set(sizes(branches)) if sizes else set()
    (size,) = found if len(found) == 1 else (0,)
    per_layer = branches // model.depth
    return size // per_layer if size and size % per_layer == 0 else None


def _mean(values: Sequence[float | None]) -> float | None:
    return _over(statistics.fmean, values)


def _over(what: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return what(known) if known else None
