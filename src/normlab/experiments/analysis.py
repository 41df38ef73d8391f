"""From finished cells to a comparison: best rate per scheme, paired differences, cost, layers. From the disk alone.

Cells are compared within a *setting*: everything but the scheme, the learning rate and the seed is equal. The result
is plain values (what `normlab compare --json` prints).
"""

from __future__ import annotations

import json
import statistics as stats
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from normlab.errors import ConfigError, InputError, canonical, unknown
from normlab.experiments.cell import context_free
from normlab.experiments.claims import claims, decay_gaps
from normlab.experiments.findings import answer, statement
from normlab.experiments.folder import setting_of
from normlab.experiments.sweep import Cell
from normlab.experiments.timing import relative
from normlab.schemes import Frame, SchemeConfig
from normlab.stats import holm, interval, log_parabola, paired

Costs = Mapping[tuple[str, str], Mapping[str, Any]]  # by setting and scheme, see `timing`
TUNING_SEED = 0
MARKS = ("start", "middle", "end")
LISTS = ("magnitude", "output", "contribution", "token_cosine", "block_influence", "gradient_share", "skip", "prune",
         "independent")  # fmt: skip


def label(scheme: SchemeConfig) -> str:
    """The scheme's name, with the options that are not its defaults."""
    changed = [f"{k}={v}" for k, v in scheme.to_dict().items() if k != "name" and v != type(scheme)().to_dict()[k]]  # type: ignore[call-arg]
    return f"{scheme.name}({', '.join(changed)})" if changed else scheme.name


def analyse(
    cells: Sequence[Cell], *, baseline: str | None = None, costs: Costs | None = None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Every setting with its table, statements and claims; and every cell. `notes` say what the sweeps lack."""
    if not cells:
        raise InputError("no finished run was found to compare; run the sweep first, or look at its failure.json files")
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[_setting(cell)].append(cell)
    ordered = sorted(groups.values(), key=lambda group: (group[0].config.model.depth, group[0].config.model.dim))
    return {
        "kind": "compare",
        "notes": list(notes),
        "settings": [_compare(_unique(group), baseline, costs or {}) for group in ordered],
        "cells": [cell_row(cell) for cell in cells],
    }


def cell_row(cell: Cell) -> dict[str, Any]:
    train = cell.config.train
    kept = {k: v for k, v in cell.summary.items() if k not in ("weights", "versions", "lr", "seed", "step", "loss")}
    return {
        "cell": cell.name, "scheme": label(cell.config.model.scheme), "depth": cell.config.model.depth, "lr": train.lr,
        "warmup": train.schedule.warmup, "seed": train.seed, "steps": train.steps, "loss": cell.loss, **kept,
        "scheme_flops_per_token": _scheme_flops(cell),
    }  # fmt: skip


def _setting(cell: Cell) -> str:
    return f"{setting_of(cell.config)} {cell.data}"


def _unique(group: Sequence[Cell]) -> list[Cell]:
    """One cell per config: merged sweeps may hold the same one twice."""
    return list({json.dumps(cell.config.to_dict(), sort_keys=True): cell for cell in group}.values())


def _compare(group: Sequence[Cell], asked: str | None, costs: Costs) -> dict[str, Any]:
    schemes: dict[str, list[Cell]] = defaultdict(list)
    for cell in group:
        schemes[label(cell.config.model.scheme)].append(cell)
    rows = {name: _scheme_row(name, found) for name, found in schemes.items()}
    base = pick_baseline(list(rows), asked)
    floor = context_free(group[0].config, group[0].summary)
    timed = {name: costs.get((setting_of(group[0].config), name)) for name in rows}
    for name, row in rows.items():
        row["learned"] = None if floor is None else row["mean"] is not None and row["mean"] < floor
        row["cost"] = relative(timed[name], timed[base])
        if row["cost"]:
            row["tokens_per_second"] = _tokens(group[0].config) / row["cost"]["seconds"]
    for row in rows.values():
        _against(row, rows[base])
    tests = holm({name: row["difference"] for name, row in rows.items() if name != base})
    for name, test in tests.items():
        rows[name]["difference"] = test
    config = group[0].config
    setting = {
        "depth": config.model.depth, "dim": config.model.dim, "heads": config.model.heads, "task": config.task.to_dict(),
        "steps": config.train.steps, "tokens": config.train.steps * _tokens(config),
        "batch": config.train.batch, "length": config.train.length, "warmup": config.train.schedule.warmup,
        "schedule": config.train.schedule.kind, "decay_start": decay_start(config), "context_free_loss": floor,
    }  # fmt: skip
    # A mean over survivors is no better than a whole one.
    ordered = sorted(
        rows.values(),
        key=lambda row: (row["mean"] is None, row["diverged"] > 0, 0.0 if row["mean"] is None else row["mean"]),
    )
    result: dict[str, Any] = {"setting": setting, "baseline": base, "schemes": ordered}
    result["statements"] = {row["scheme"]: statement(row, rows[base]) for row in ordered}
    result["claims"] = claims(rows, config.model.depth)
    result["answer"] = answer(result)
    for row in ordered:
        row["difference"] = row["difference"].to_dict()
        row["decay_gap"]["test"] = row["decay_gap"]["test"].to_dict()
    return result


def pick_baseline(names: Sequence[str], asked: str | None) -> str:
    if asked is not None:
        found = [name for name in names if canonical(asked) in (name, name.partition("(")[0])]
        if not found:
            raise ConfigError(unknown("baseline", asked, names))
        return found[0]
    return "pre_norm" if "pre_norm" in names else names[0]


def _tokens(config: Any) -> int:
    return config.train.batch * config.train.length * config.train.accumulate


def decay_start(config: Any) -> int:
    schedule, steps = config.train.schedule, config.train.steps
    return max(schedule.warmup, round(steps * (1 - schedule.decay))) if schedule.kind == "wsd" else schedule.warmup


def best_rate(cells: Sequence[Cell]) -> tuple[float, list[dict[str, Any]]]:
    """The rate with the lowest mean loss over the seeds that every rate was run with, and the table of rates.

    A rate at which any of those seeds diverged is not chosen, unless all are like that.
    """
    rates: dict[float, dict[int, Cell]] = defaultdict(dict)
    for cell in cells:
        rates[cell.config.train.lr][cell.config.train.seed] = cell
    common = set.intersection(*(set(found) for found in rates.values()))
    table: list[dict[str, Any]] = []
    for lr in sorted(rates):
        seeds = sorted(common or rates[lr])
        losses = [rates[lr][seed].loss for seed in seeds]
        known = [loss for loss in losses if loss is not None]
        mean = stats.fmean(known) if known and len(known) == len(losses) else None
        table.append({"lr": lr, "mean": mean, "seeds": len(seeds), "diverged": len(losses) - len(known)})
    able = [row for row in table if row["mean"] is not None]
    chosen = min(able, key=lambda row: row["mean"]) if able else table[0]
    return chosen["lr"], table


def _scheme_row(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    lr, rates = best_rate(cells)
    index = [row["lr"] for row in rates].index(lr)
    final = sorted((c for c in cells if c.config.train.lr == lr), key=lambda c: c.config.train.seed)
    losses = {c.config.train.seed: c.loss for c in final}
    known = [loss for loss in losses.values() if loss is not None]
    reach = interval(known)
    near = [(row["lr"], row["mean"]) for row in rates[max(index - 1, 0) : index + 2] if row["mean"] is not None]
    fit = log_parabola(near) if len(near) == 3 else None
    summaries = [c.summary for c in final]
    first = summaries[0]
    return {
        "scheme": name, "lr": lr, "rates": rates, "at_edge": _at_edge(index, rates), "lr_fit": fit[0] if fit else None,
        "lost_at_twice_lr": fit[1] if fit else None, "losses": losses, "diverged": len(losses) - len(known),
        "mean": stats.fmean(known) if known else None, "low": reach[0] if reach else None,
        "high": reach[1] if reach else None,
        "averaged": {k: _mean([s["weights"].get(k, {}).get("loss") for s in summaries]) for k in ("ema", "bema")},
        # Neither rate nor seed changes the cost: the fastest run is the least disturbed one.
        "clock": "processor" if all(c.summary.get("clock") == "processor" for c in cells) else "wall",
        "tokens_per_second": _over(max, [c.summary["tokens_per_second"] for c in cells]),
        "activation_bytes": first["activation_bytes"], "peak_bytes": _median([s["peak_bytes"] for s in summaries]),
        "parameters": first["parameters"], "scheme_parameters": first["scheme_parameters"],
        "flops_per_token": first["flops_per_token"] + _scheme_flops(final[0]),
        "curve": _curves(final), "layers": {mark: _layers(final, mark) for mark in MARKS},
        "per_seed": {c.config.train.seed: _layer_record(c, "end") for c in final if c.loss is not None},
        "law": _law(final[0]), "period": _period(final[0]),
    }  # fmt: skip


def _at_edge(index: int, rates: Sequence[dict[str, Any]]) -> str | None:
    """Is the best rate the lowest or highest that was tried? Then a better one may lie outside."""
    if len(rates) < 2:
        return None
    return "lowest" if index == 0 else "highest" if index == len(rates) - 1 else None


def _against(row: dict[str, Any], base: dict[str, Any]) -> None:
    """Differences to the baseline, seed by seed."""
    shared = [s for s, loss in row["losses"].items() if loss is not None and base["losses"].get(s) is not None]
    row["difference"] = paired([row["losses"][s] - base["losses"][s] for s in shared])
    row["without_tuning_seed"] = paired([row["losses"][s] - base["losses"][s] for s in shared if s != TUNING_SEED]).mean
    if row["learned"] is False and base["learned"] is False:  # noise around the frequencies of tokens
        row["difference"] = replace(row["difference"], p=None)
    row["parameters_ratio"] = row["parameters"] / base["parameters"]
    reached = [_crossing(row["curve"][s], base["curve"][s]["loss"][-1]) for s in shared]
    row["steps_to_baseline"] = (
        stats.fmean(r for r in reached if r is not None) if reached and None not in reached else None
    )
    row["reached_baseline"] = [len([r for r in reached if r is not None]), len(reached)]
    gaps = decay_gaps(row, base)
    row["decay_gap"] = {"test": paired([g[-1][1] - g[0][1] for g in gaps.values() if len(g) > 1]), "seeds": gaps}


def _crossing(curve: dict[str, Any], target: float) -> float | None:
    """The first step, interpolated, at which the held-out loss is down to the target."""
    points = list(zip(curve["step"], curve["loss"], strict=True))
    for i, (step, loss) in enumerate(points):
        if loss <= target:
            if i == 0:
                return float(step)
            before, above = points[i - 1]
            return before + (step - before) * (above - target) / (above - loss)
    return None


def _curves(cells: Sequence[Cell]) -> dict[int, dict[str, Any]]:
    found = {}
    for cell in cells:
        records = cell.of_kind("validation")
        steps, losses = [r["step"] for r in records], [r["loss"] for r in records]
        found[cell.config.train.seed] = {"step": steps, "loss": losses, "decay_start": decay_start(cell.config)}
    return found


def _layer_record(cell: Cell, mark: str) -> dict[str, Any]:
    records = cell.of_kind("layers")
    wanted = {"start": 0, "middle": cell.config.train.steps // 2, "end": cell.config.train.steps}[mark]
    close = [r for r in records if abs(r["step"] - wanted) <= 1]
    return close[0] if close else {}


def _layers(cells: Sequence[Cell], mark: str) -> dict[str, Any]:
    """Means over seeds, entry by entry; the mixing matrix is the first seed's."""
    records = [r for c in cells if (r := _layer_record(c, mark))]
    mean: dict[str, Any] = {key: _mean_lists([r.get(key) for r in records]) for key in LISTS}
    return {**mean, "mixing": records[0].get("mixing") if records else None}


def _law(cell: Cell) -> list[Any]:
    """The scheme's law of growth at initialisation (see `SchemeConfig.growth`)."""
    law = cell.config.model.scheme.growth(_frame(cell))
    return [list(value) if isinstance(value, tuple) else value for value in law]


def _scheme_flops(cell: Cell) -> float:
    """A training step's arithmetic of the scheme itself, per token; cells record that of branches and head."""
    return 3 * cell.config.model.scheme.mixing_flops(_frame(cell))


def _frame(cell: Cell) -> Frame:
    model = cell.config.model
    return Frame(model.dim, model.sites(), norm=model.norm, eps=model.eps, init_std=model.init_std)


def _period(cell: Cell) -> int | None:
    """Layers a block, for schemes of equal blocks of whole layers."""
    model = cell.config.model
    sizes = getattr(model.scheme, "block_sizes", None)
    branches = len(model.sites())
    found = set(sizes(branches)) if sizes else set()
    (size,) = found if len(found) == 1 else (0,)
    per_layer = branches // model.depth
    return size // per_layer if size and size % per_layer == 0 else None


def _mean_lists(lists: Sequence[list[float] | None]) -> list[float | None] | None:
    known = [values for values in lists if values is not None]
    return [_mean(column) for column in zip(*known, strict=True)] if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    return _over(stats.fmean, values)


def _median(values: Sequence[float | None]) -> float | None:
    return _over(stats.median, values)


def _over(what: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return what(known) if known else None
