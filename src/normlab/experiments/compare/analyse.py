"""From finished runs to a comparison: best rate per scheme, paired differences, cost, layers. From the disk alone.

Runs are compared within a *setting*: everything but the scheme, the learning rate and the seed is equal.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise

from normlab.errors import InputError
from normlab.experiments.compare.arms import REFERENCE, Arm
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
    Untested,
    enough_tokens,
    scheme_flops,
)
from normlab.experiments.compare.sentences import answer, statement
from normlab.experiments.compare.starts import start_row
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.records import FinishedRun, Gaps, LayerRecord, read_run
from normlab.experiments.timing import Costs, relative
from normlab.results import as_row
from normlab.schemes.names import parse_scheme
from normlab.stats import Paired, holm, interval, log_parabola, paired
from normlab.surgery.backbone.config import BackboneConfig
from normlab.tasks import Text

TUNING_SEED = 0
TUNING = "tuning"  # where tuning runs lie that are shorter than the others


def analyse(
    runs: Sequence[FinishedRun], *, baseline: str | None = None, costs: Costs | None = None, notes: Sequence[str] = ()
) -> Comparison:
    """Every setting with its table and statements; and every run. `notes` say what the sweeps lack."""
    if not runs:
        raise InputError("no finished run was found to compare; run the sweep first, or look at its failure.json files")
    groups: dict[str, list[FinishedRun]] = defaultdict(list)
    for run in runs:
        groups[f"{run.config.setting()} {run.data}"].append(run)
    ordered = sorted(groups.values(), key=lambda group: (group[0].config.model.depth, group[0].config.model.dim))
    settings = [_compare(_unique(group), baseline, costs or {}) for group in ordered]
    return Comparison(notes=list(notes), settings=settings, cells=[RunRow.of(run) for run in runs])


def _unique(group: Sequence[FinishedRun]) -> list[FinishedRun]:
    """One run per config: merged sweeps may hold the same one twice."""
    return list({run.config.to_json(): run for run in group}.values())


def _compare(group: Sequence[FinishedRun], asked: str | None, costs: Costs) -> SettingResult:
    arms: dict[Arm, list[FinishedRun]] = defaultdict(list)
    for run in group:
        arms[Arm.of(run.config)].append(run)
    tuned = _tuning_runs(group)
    own = {arm.label: _scheme_runs(arm, found, tuned.get(arm, [])) for arm, found in arms.items()}
    schemes = [name for name, found in own.items() if not found.is_control]
    base = asked if asked in own else pick_baseline(schemes or list(own), asked)
    config, floor = group[0].config, group[0].floor
    timed = {name: costs.get((config.setting(), name)) for name in own}
    for name, found in own.items():
        learned = None if floor is None else found.mean is not None and found.mean < floor
        cost = relative(timed[name], timed[base])
        speed = config.tokens_a_step / cost.seconds if cost else found.tokens_per_second
        own[name] = replace(found, learned=learned, cost=cost, tokens_per_second=speed)
    setting = _setting(config, floor)
    length = setting.tokens / own[base].parameters if own[base].parameters else None
    rows = _tested({name: _against(found, own, base, length) for name, found in own.items()}, base)
    ordered = _ordered(rows, base, length)
    starts = [start_row(arms[arm][0].config) for arm in sorted(arms)]
    return SettingResult(
        setting=setting,
        baseline=base,
        schemes=ordered,
        statements={found.scheme: statement(found, rows[base]) for found in ordered},
        answer=answer(setting, ordered, base, length),
        tokens_per_parameter=length,
        starts=[row for row in starts if row is not None],
        own_starts={arm.label: text for arm in sorted(arms) if (text := parse_scheme(arm.scheme).card.own_start)},
    )


def _tested(rows: Mapping[str, SchemeRow], base: str) -> dict[str, SchemeRow]:
    """With p-values corrected for all differences of the setting, those to the controls among them."""
    tests = {f"base {name}": row.difference for name, row in rows.items() if name != base}
    tests |= {f"control {name}": row.against_control for name, row in rows.items() if row.against_control is not None}
    adjusted = holm(tests)
    return {
        name: replace(
            row,
            difference=adjusted.get(f"base {name}", row.difference),
            against_control=adjusted.get(f"control {name}", row.against_control),
        )
        for name, row in rows.items()
    }


def _ordered(rows: Mapping[str, SchemeRow], base: str, length: float | None) -> list[SchemeRow]:
    """The best first; the baseline first and the others by name where so short a training orders nothing."""
    if not enough_tokens(length):
        return sorted(rows.values(), key=lambda row: (row.scheme != base, row.scheme))
    # A mean over survivors is no better than a whole one.
    return sorted(rows.values(), key=lambda r: (r.mean is None, r.diverged > 0, 0.0 if r.mean is None else r.mean))


def _tuning_runs(group: Sequence[FinishedRun]) -> dict[Arm, list[FinishedRun]]:
    """The runs that chose the rates, where those were runs of their own."""
    found: dict[Arm, list[FinishedRun]] = defaultdict(list)
    for folder in dict.fromkeys(run.folder.parent / TUNING for run in group):
        for path in sorted(folder.glob("*/config.yaml")):
            if (run := read_run(path.parent)) is not None:
                found[Arm.of(run.config)].append(run)
    return found


def _setting(config: RunConfig, floor: float | None) -> SharedSetting:
    model, train = config.model, config.train
    return SharedSetting(
        depth=model.depth, dim=model.dim, heads=model.heads, task=as_row(config.task), steps=train.steps,
        tokens=train.steps * config.tokens_a_step, batch=train.batch, length=train.length,
        warmup=train.schedule.warmup, schedule=train.schedule.kind, decay_start=config.decay_start,
        context_free_loss=floor, recipe=config.recipe,
        start="fair" if _begins_fairly(config) else "old",
        optimizer=train.optimizer, epochs=_epochs(config),
        architecture=model.name if isinstance(model, BackboneConfig) else None,
    )  # fmt: skip


def _begins_fairly(config: RunConfig) -> bool:
    """By its model; where each takes its authors' recipe, by the record of whose that is."""
    if isinstance(config.model, BackboneConfig):
        return config.recipe == "fair"
    return config.recipe_of is not None or config.model.start == "fair"


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


def _scheme_runs(arm: Arm, runs: Sequence[FinishedRun], tuned: Sequence[FinishedRun]) -> SchemeRuns:
    """`tuned`: the runs that chose its rate, where those are others."""
    lr, table = best_rate(runs)
    rates = best_rate(tuned)[1] if tuned else table
    index = next((i for i, rate in enumerate(rates) if rate.lr == lr), None)
    final = sorted((run for run in runs if run.lr == lr), key=lambda run: run.seed)
    losses = {run.seed: run.loss for run in final}
    known = [loss for loss in losses.values() if loss is not None]
    reach = interval(known)
    around = [] if index is None else rates[max(index - 1, 0) : index + 2]
    near = [(rate.lr, rate.mean) for rate in around if rate.mean is not None]
    fit = log_parabola(near) if len(near) == 3 else None
    summaries = [run.summary for run in final]
    first, own_flops = summaries[0], scheme_flops(final[0])
    return SchemeRuns(
        scheme=arm.label, lr=lr, rates=rates, at_edge=_at_edge(index, len(rates)), lr_fit=fit[0] if fit else None,
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
        is_control=bool(arm.start_of), recipe_of=final[0].config.recipe_of,
        train=_mean([_train_loss(run) for run in final if run.loss is not None]),
        law=list(final[0].config.model.scheme.growth(final[0].config.model.frame())),
    )  # fmt: skip


def _at_edge(index: int | None, rates: int) -> str | None:
    """Is the best rate the lowest or highest that was tried? Then a better one may lie outside."""
    if rates < 2 or index is None:
        return None
    return "lowest" if index == 0 else "highest" if index == rates - 1 else None


def _against(own: SchemeRuns, rows: Mapping[str, SchemeRuns], base_name: str, length: float | None) -> SchemeRow:
    """With the differences to the baseline and to its control, seed by seed."""
    base, control = rows[base_name], _control(own, rows, base_name)
    differences = {s: _loss(own, s) - _loss(base, s) for s in shared_seeds(own, base)}
    difference, untested = _difference(own, base, length)
    beside = None if control is None else _difference(own, control, length)
    reached = [_crossing(own.curve[s], base.curve[s].loss[-1]) for s in differences]
    there = [step for step in reached if step is not None]
    gaps = decay_gaps(own, base)
    return SchemeRow(
        **{f.name: getattr(own, f.name) for f in fields(own)},
        difference=difference,
        untested=None if own is base else untested,
        control=None if control is None else control.scheme,
        against_control=None if beside is None else beside[0],
        untested_against_control=None if beside is None else beside[1],
        without_tuning_seed=paired([value for s, value in differences.items() if s != TUNING_SEED]).mean,
        parameters_ratio=own.parameters / base.parameters if base.parameters else 1.0,
        steps_to_baseline=statistics.fmean(there) if there and len(there) == len(reached) else None,
        reached_baseline=(len(there), len(reached)),
        loss_at_equal_time=_at_equal_time(own),
        decay_gap=DecayGap(paired([gap[-1][1] - gap[0][1] for gap in gaps.values() if len(gap) > 1]), gaps),
    )


def _loss(row: SchemeRuns, seed: int) -> float:
    return row.losses[seed] or 0.0


def _control(own: SchemeRuns, rows: Mapping[str, SchemeRuns], base: str) -> SchemeRuns | None:
    """Pre-Norm with the start that this scheme has, where it is another than the baseline."""
    if own.recipe_of is None or own.is_control or own.scheme == REFERENCE:
        return None
    alike = (row for row in rows.values() if row.is_control or row.scheme == REFERENCE)
    return next((row for row in alike if row.recipe_of == own.recipe_of and row.scheme != base), None)


def _difference(own: SchemeRuns, other: SchemeRuns, length: float | None) -> tuple[Paired, Untested | None]:
    """Own loss minus the other's, seed by seed, and why no test is made of it: then it has an interval and no p."""
    test = paired([_loss(own, s) - _loss(other, s) for s in shared_seeds(own, other)])
    why = _untested(own, other, test, length)
    return (test if why is None else replace(test, p=None)), why


def _untested(own: SchemeRuns, other: SchemeRuns, test: Paired, length: float | None) -> Untested | None:
    if own.learned is False and other.learned is False:  # noise around the frequencies of tokens
        return "nothing_learned"
    if test.n < 2:
        lost = any(row.diverged and row.diverged >= len(row.losses) - 1 for row in (own, other))
        return "diverged" if lost else "one_seed"
    if not enough_tokens(length):
        return "few_tokens"
    if own.at_edge or other.at_edge:
        return "edge"
    return "one_rate" if min(len(own.rates), len(other.rates)) < 2 else None


def decay_gaps(row: SchemeRuns, base: SchemeRuns) -> dict[int, list[tuple[int, float]]]:
    """(step, loss - the other's loss) from the begin of the decay on, for each seed that both finished."""
    return {seed: _gap(row.curve[seed], base.curve[seed]) for seed in shared_seeds(row, base)}


def shared_seeds(row: SchemeRuns, base: SchemeRuns) -> list[int]:
    """The seeds that both finished."""
    return [s for s, loss in row.losses.items() if loss is not None and base.losses.get(s) is not None]


def _gap(curve: LossCurve, base: LossCurve) -> list[tuple[int, float]]:
    other = dict(zip(base.step, base.loss, strict=True))
    pairs = zip(curve.step, curve.loss, strict=True)
    return [(step, loss - other[step]) for step, loss in pairs if step >= curve.decay_start and step in other]


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


def _mean(values: Sequence[float | None]) -> float | None:
    return _over(statistics.fmean, values)


def _over(what: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return what(known) if known else None
