"""What finished runs say about stability: every run judged, every edge bracketed, and the field's claim about warm-up.

`CRITERIA` says when a run is unstable, flat or stable. A point (scheme, depth, warm-up, rate) is stable, or has learned,
if all its seeds are or have.
"""

from __future__ import annotations

import json
import math
import statistics as stats
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from normlab.errors import InputError
from normlab.experiments.analysis import cell_row
from normlab.experiments.cell import context_free
from normlab.experiments.folder import setting_of
from normlab.experiments.sweep import Cell
from normlab.stats import paired

CRITERIA = {
    "nan": "a loss or gradient is not finite, or the loop gave up (loss far above chance for many steps)",
    "above": "the median training loss of the last window lies above the first step's loss",
    "spike": "that median lies above the lowest window's by more than a quarter of the whole descent: a spike, or a slow "
    "rise, that did not come back",
    "flat": "none of these three, so it is stable; but its held-out loss is not below the entropy of single tokens there, "
    "which no model that ignores the context can beat: nothing was learned but frequencies",
    "stable": "none of these. A window is a twentieth of the run, at least 5 steps; rises of less than a hundredth of the "
    "first loss are noise",
}
LOST = 0.25
NOISE = 0.01  # batches differ: a rate too small to move the loss must not look like a rise
SPIKE = 4.0  # a gradient norm this many times the median of the steps before it
USABLE = 0.1  # nats above the best loss of the scheme
NEEDS = {"post_norm": True, "pre_norm": False}  # what the field says of warm-up at depth
# (what the number is, where it is, the gain above which warm-up counts as needed, and below which as not needed)
NUMBERS = (
    ("octaves by which the most warm-up raises the highest rate that learns", "learns_per_seed", 1.0),
    ("octaves by which the most warm-up raises the stable edge", "edge_per_seed", 1.0),
    ("nats by which the most warm-up lowers the best loss", "best_per_seed", USABLE),
)


# -- one run ----------------------------------------------------------------------------------------------------------
def judge(losses: Sequence[float | None], status: str = "finished") -> str:
    """stable, nan, above or spike, from the training loss of every step."""
    if status == "diverged" or not losses or any(value is None or not math.isfinite(value) for value in losses):
        return "nan"
    known = [float(value) for value in losses if value is not None]
    size = max(5, len(known) // 20)
    windows = [stats.median(known[i : i + size]) for i in range(0, max(1, len(known) - size + 1), size)]
    start, last, lowest = known[0], stats.median(known[-size:]), min(windows)
    noise = NOISE * start
    if last > start + noise:
        return "above"
    return "spike" if last > lowest + max(LOST * (start - lowest), noise) else "stable"


def gradient_spikes(norms: Sequence[float | None], *, before: int = 20) -> int:
    """Steps whose gradient norm is more than SPIKE times the median of the `before` steps in front of them."""
    count = 0
    for i in range(5, len(norms)):
        past = [n for n in norms[max(0, i - before) : i] if n is not None]
        now = norms[i]
        count += now is None or (bool(past) and now > SPIKE * stats.median(past))
    return count


def verdict(cell: Cell) -> str:
    """stable, flat, nan, above or spike."""
    found = judge([r["loss"] for r in cell.of_kind("train")], cell.status)
    floor = context_free(cell.config, cell.summary)
    flat = found == "stable" and floor is not None and (cell.loss is None or cell.loss >= floor)
    return "flat" if flat else found


def is_stable(word: str) -> bool:
    return word in ("stable", "flat")


# -- edges ------------------------------------------------------------------------------------------------------------
def bracket(good: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """(highest good rate below the first bad one, that bad one): where stability ends."""
    bad = [rate for rate in sorted(good) if not good[rate]]
    above = bad[0] if bad else None
    fine = [rate for rate in good if good[rate] and (above is None or rate < above)]
    return (max(fine) if fine else None), above


def top(good: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """(highest good rate, next rate that was tried): where learning ends. Rates far below it learn nothing either."""
    fine = [rate for rate in good if good[rate]]
    if not fine:
        return None, None
    return max(fine), min((rate for rate in good if rate > max(fine)), default=None)


# -- the map ----------------------------------------------------------------------------------------------------------
def analyse(cells: Sequence[Cell], *, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The map from finished cells: every cell, every point, and per scheme and depth the widest stable region."""
    if not cells:
        raise InputError("no finished run was found; run the sweep first, or look at its failure.json files")
    rows, settings = [], [_setting(cell) for cell in cells]
    for cell in cells:
        spikes = gradient_spikes([r["grad_norm"] for r in cell.of_kind("train")])
        floor = context_free(cell.config, cell.summary)
        rows.append({**cell_row(cell), "context_free_loss": floor, "verdict": verdict(cell), "gradient_spikes": spikes})
    groups: dict[tuple[int, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row, setting in zip(rows, settings, strict=True):
        groups[row["depth"], row["scheme"], setting].append(row)
    names = _names(settings, cells)
    regions = [
        _region(scheme, depth, names[setting], found) for (depth, scheme, setting), found in sorted(groups.items())
    ]
    return {
        "kind": "stability", "notes": list(notes), "criteria": CRITERIA, "regions": regions, "claims": _claims(regions),
        "statements": [_sentence(region) for region in regions], "cells": rows,
    }  # fmt: skip


def _setting(cell: Cell) -> str:
    """What the lines of one map share: all but scheme, depth, warm-up, rate and seed."""
    values = {**json.loads(setting_of(cell.config)), "data": cell.data}
    values["model"].pop("depth")
    values["train"].pop("schedule")
    return json.dumps(values, sort_keys=True)


def _names(settings: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    """What tells merged maps apart, in words: nothing where there is one."""
    found = {setting: cell.config for setting, cell in zip(settings, cells, strict=True)}
    if len(found) == 1:
        return dict.fromkeys(found, "")
    words = {
        s: f"width {c.model.dim}, {c.train.steps} steps of {c.train.batch} x {c.train.length}" for s, c in found.items()
    }
    same = len(set(words.values())) < len(words)
    return {s: f"{word}, map {i}" if same else word for i, (s, word) in enumerate(sorted(words.items()), 1)}


def _region(scheme: str, depth: int, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    lines = [
        _line(warmup, [row for row in rows if row["warmup"] == warmup])
        for warmup in sorted({row["warmup"] for row in rows})
    ]
    best = min((line["best_loss"] for line in lines if line["best_loss"] is not None), default=None)
    for line in lines:
        near = [
            p["lr"] for p in line["points"] if best is not None and p["loss"] is not None and p["loss"] <= best + USABLE
        ]
        line["usable"] = [min(near), max(near)] if near else None
    widest = max(lines, key=lambda line: (line["edge"] or 0.0, -line["warmup"]))
    return {
        "scheme": scheme, "depth": depth, "map": name, "steps": rows[0]["steps"], "warmups": lines,
        "widest": widest["warmup"],
        "context_free_loss": rows[0]["context_free_loss"], "learned": any(row["verdict"] == "stable" for row in rows),
    }  # fmt: skip


def _line(warmup: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One warm-up: its points by rate, and the edges, of all seeds together and of each."""
    points = [_point(lr, [row for row in rows if row["lr"] == lr]) for lr in sorted({row["lr"] for row in rows})]
    below, above = bracket({p["lr"]: p["stable"] for p in points})
    seeds = {seed: [row for row in rows if row["seed"] == seed] for seed in sorted({row["seed"] for row in rows})}
    return {
        "warmup": warmup, "edge": below, "unstable_from": above, "points": points,
        "learns_up_to": top({p["lr"]: p["learned"] for p in points})[0],
        "best_loss": min((p["loss"] for p in points if p["loss"] is not None), default=None),
        "lowest": min(p["lr"] for p in points),
        **_edges("edge", {s: bracket({r["lr"]: is_stable(r["verdict"]) for r in own}) for s, own in seeds.items()}),
        **_edges("learns", {s: top({r["lr"]: r["verdict"] == "stable" for r in own}) for s, own in seeds.items()}),
        "best_per_seed": {
            s: min((r["loss"] for r in own if is_stable(r["verdict"])), default=None) for s, own in seeds.items()
        },
    }  # fmt: skip


def _edges(name: str, found: Mapping[int, tuple[float | None, float | None]]) -> dict[str, Any]:
    """The lower end of each seed's bracket (None where it is open: the edge was not found), and the widest, in octaves.

    `none`: the seeds with no good rate at all; their edge lies below the lowest rate that was tried.
    """
    closed = {seed: (low, high) for seed, (low, high) in found.items() if low is not None and high is not None}
    return {
        f"{name}_per_seed": {seed: closed[seed][0] if seed in closed else None for seed in found},
        f"{name}_none": [seed for seed, (low, _) in found.items() if low is None],
        f"{name}_octaves": max((math.log2(high / low) for low, high in closed.values()), default=0.0),
    }


def _point(lr: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
    losses = [run["loss"] for run in runs if is_stable(run["verdict"])]
    fine = len(losses) == len(runs)
    return {
        "lr": lr, "stable": fine, "learned": all(run["verdict"] == "stable" for run in runs),
        "unstable_seeds": len(runs) - len(losses), "seeds": len(runs), "loss": stats.fmean(losses) if fine else None,
        "verdicts": sorted({run["verdict"] for run in runs}),
        "gradient_spikes": stats.fmean(run["gradient_spikes"] for run in runs),
    }  # fmt: skip


# -- sentences --------------------------------------------------------------------------------------------------------
def _sentence(region: dict[str, Any]) -> str:
    lines = region["warmups"]
    widest = next(line for line in lines if line["warmup"] == region["widest"])
    name = f"{region['scheme']} at {region['depth']} layers{_which(region)}"
    if widest["edge"] is None:
        return f"{name}: no stable learning rate was found."
    edges = ", ".join(f"{_show(line['edge'])} with {line['warmup']} steps" for line in lines)
    losses = ", ".join(f"{_show(line['best_loss'])}" for line in lines)
    bound = "" if widest["unstable_from"] is not None else " (nothing unstable was found)"
    said = f"{name}: stable up to a learning rate of {edges} of warm-up{bound}"
    if not region["learned"]:
        return (
            f"{said}; but no run got below the {_show(region['context_free_loss'])} nats of single tokens (best {losses}): "
            "nothing was learned, so this says little about stability."
        )
    learned = ", ".join(_show(line["learns_up_to"]) for line in lines)
    return f"{said}; it learns up to {learned}; best loss {losses}, in the same order."


def _which(region: dict[str, Any]) -> str:
    return f" ({region['map']})" if region["map"] else ""


def _show(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _claims(regions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Post-Norm needs warm-up at depth and Pre-Norm does not, by three numbers: the two edges, and the best loss."""
    found = []
    for region in regions:
        if region["scheme"].partition("(")[0] in NEEDS:
            found += [_claim(region, *number) for number in NUMBERS]
    return [claim for claim in found if claim is not None]


def _edge_or_bound(line: dict[str, Any], key: str) -> dict[int, float | None]:
    """A seed without any good rate counts as if its edge were the lowest rate tried, which understates what is lost."""
    none = line.get(key.replace("per_seed", "none"), ())
    return {seed: line["lowest"] if seed in none else value for seed, value in line[key].items()}


def _claim(region: dict[str, Any], number: str, key: str, margin: float) -> dict[str, Any] | None:
    first, last = region["warmups"][0], region["warmups"][-1]
    if first["warmup"] != 0 or last["warmup"] == 0:
        return None
    without, with_ = (_edge_or_bound(line, key) for line in (first, last))
    nowhere = set.intersection(*(set(line.get(key.replace("per_seed", "none"), ())) for line in (first, last)))
    both = [s for s in without if without[s] is not None and with_.get(s) is not None and s not in nowhere]
    gain = (lambda a, b: a - b) if key == "best_per_seed" else (lambda a, b: math.log2(b / a))
    values = [gain(without[seed], with_[seed]) for seed in both]
    test, needs = paired(values), NEEDS[region["scheme"].partition("(")[0]]
    # Edges are known up to their brackets only: a gain must exceed those, and "no gain" must hold at their far end.
    blur = 0.0 if key == "best_per_seed" else max(line[key.replace("per_seed", "octaves")] for line in (first, last))
    bounded = any(line.get(key.replace("per_seed", "none")) for line in (first, last))
    helps = test.significant and test.low is not None and test.low > max(margin, blur)
    useless = test.high is not None and test.high + blur < margin and not bounded
    outcome = "undecided"
    if region["learned"] and (helps or useless):  # runs that never learn show nothing about what training needs
        outcome = "confirmed" if helps == needs else "refuted"
    where = f"at {region['depth']} layers, in {region['steps']} steps{_which(region)}"
    text = f"{region['scheme']} {'needs' if needs else 'does not need'} warm-up {where}"
    reason = "" if region["learned"] else "no run got below the loss of single tokens"
    return {"claim": text, "verdict": outcome, "values": values, "number": number, "reason": reason, **test.to_dict()}
