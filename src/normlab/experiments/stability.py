"""Where training is stable: learning rate x warm-up, per scheme and depth, the edge found by refinement.

A run is *unstable* by one of three criteria, all on the training loss of every step:

    nan     a loss or gradient is not finite, or the loop gave up (loss far above chance for many steps)
    above   the median of the last window lies above the first step's loss
    spike   the median of the last window lies above the lowest window's by more than a quarter of the whole descent:
            a spike, or a slow rise, that did not come back

A window is a twentieth of the run, at least 5 steps. A point (scheme, depth, warm-up, rate) is stable if all its seeds
are. The edge is bracketed by a coarse grid, grown where it must, then bisected in log(rate).
"""

from __future__ import annotations

import math
import statistics as stats
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator
from typing_extensions import Self

from normlab.config import Config
from normlab.errors import ConfigError, InputError
from normlab.experiments.analysis import cell_row
from normlab.experiments.cell import AnyTask, CellConfig, MeasureConfig
from normlab.experiments.compare import cell_name, parse_scheme, round_3
from normlab.experiments.statistics import paired
from normlab.experiments.sweep import Cell, Sweep, read_cells
from normlab.model import TransformerConfig
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig

Key = tuple[str, int, int]  # scheme, depth, steps of warm-up
LOST = 0.25
SPIKE = 4.0  # a gradient norm this many times the median of the steps before it
LOWEST, HIGHEST = 1e-7, 10.0
USABLE = 0.1  # nats above the best loss of the scheme
NEEDS = {"post_norm": True, "pre_norm": False}  # what the field says of warm-up at depth
# (what the number is, where it is, below what gain warm-up counts as not needed)
NUMBERS = (
    ("octaves by which the most warm-up raises the stable edge", "edge_per_seed", 1.0),
    ("nats by which the most warm-up lowers the best loss", "best_per_seed", USABLE),
)


class StabilityConfig(Config):
    """The map that is asked for."""

    what: ClassVar[str] = "stability map"

    schemes: tuple[str, ...] = ("post_norm", "pre_norm")
    depths: tuple[int, ...] = (12,)
    dim: int = Field(default=64, ge=1)
    heads: int = Field(default=4, ge=1)
    batch: int = Field(default=8, ge=1)
    length: int = Field(default=64, ge=1)
    task: AnyTask = Text()
    steps: int = Field(default=100, ge=20)
    warmups: tuple[int, ...] = (0, 10, 30)
    lrs: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    seeds: int = Field(default=1, ge=1)
    factor: float = Field(default=1.5, gt=1, description="how closely the edge is bracketed: unstable / stable rate")
    clip: float | None = Field(default=1.0, gt=0)

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            parse_scheme(name)
        return names

    @field_validator("lrs")
    @classmethod
    def _grid(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(rates)) < 2 or any(not rate > 0 for rate in rates):
            raise ValueError(f"the first grid needs two or more different positive rates, but got {list(rates)}")
        return tuple(sorted({round_3(rate) for rate in rates}))

    def check(self) -> Self:
        for warmup in self.warmups:
            if not 0 <= warmup <= self.steps:
                raise ConfigError(f"warmups: {warmup} steps of warm-up do not fit into {self.steps} steps")
        return self

    def cell(self, key: Key, lr: float, seed: int) -> CellConfig:
        scheme, depth, warmup = key
        return CellConfig(
            model=TransformerConfig(
                vocab_size=self.task.vocab_size, dim=self.dim, depth=depth, heads=self.heads, scheme=parse_scheme(scheme)
            ),
            task=self.task,
            train=TrainConfig(
                steps=self.steps, batch=self.batch, length=self.length, seed=seed, lr=lr, clip=self.clip, log_every=1,
                schedule=Schedule(kind="constant", warmup=warmup), checkpoint_every=max(20, self.steps // 2),
            ),
            measure=MeasureConfig(validations=1, curve_sequences=1, sequences=32, layers=(), prune=False),
        )  # fmt: skip

    def points(self) -> list[Key]:
        return [(scheme, depth, warmup) for depth in self.depths for scheme in self.schemes for warmup in self.warmups]


# -- one run ----------------------------------------------------------------------------------------------------------
def judge(losses: Sequence[float | None], status: str = "finished") -> str:
    """stable, nan, above or spike, from the training loss of every step."""
    if status == "diverged" or not losses or any(value is None or not math.isfinite(value) for value in losses):
        return "nan"
    known = [float(value) for value in losses if value is not None]
    size = max(5, len(known) // 20)
    windows = [stats.median(known[i : i + size]) for i in range(0, max(1, len(known) - size + 1), size)]
    start, last, lowest = known[0], stats.median(known[-size:]), min(windows)
    if last > start:
        return "above"
    return "spike" if last > lowest + LOST * (start - lowest) else "stable"


def gradient_spikes(norms: Sequence[float | None], *, before: int = 20) -> int:
    """Steps whose gradient norm is more than SPIKE times the median of the `before` steps in front of them."""
    count = 0
    for i in range(5, len(norms)):
        past = [n for n in norms[max(0, i - before) : i] if n is not None]
        now = norms[i]
        count += now is None or (bool(past) and now > SPIKE * stats.median(past))
    return count


# -- the search -------------------------------------------------------------------------------------------------------
def next_rate(stable: Mapping[float, bool], factor: float) -> float | None:
    """The next rate to try, given which are stable; None when the edge is bracketed within `factor`.

    The edge is the lowest unstable rate above the highest stable rate that has no unstable one below it.
    """
    rates = sorted(stable)
    below, above = bracket(stable)
    if below is None:
        lower = round_3(rates[0] / 10)
        return lower if lower >= LOWEST else None
    if above is None:
        higher = round_3(rates[-1] * 10)
        return higher if higher <= HIGHEST else None
    if above / below <= factor * (1 + 1e-9):
        return None
    middle = round_3(math.sqrt(below * above))
    return middle if below < middle < above else None


def bracket(stable: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """(highest stable rate below the first unstable one, that unstable one)."""
    unstable = [rate for rate in sorted(stable) if not stable[rate]]
    above = unstable[0] if unstable else None
    fine = [rate for rate in stable if stable[rate] and (above is None or rate < above)]
    return (max(fine) if fine else None), above


def stability(config: StabilityConfig, sweep: Sweep) -> dict[str, Any]:
    """Run the map, or what is missing of it, and return it."""
    config.check()
    sweep.settle("stability", config.to_dict(), dict)
    tried: dict[Key, list[float]] = {key: list(config.lrs) for key in config.points()}
    round_ = 0
    while True:
        wanted = {
            f"{cell_name(key[0], key[1], lr, seed)}-w{key[2]}": (key, lr, config.cell(key, lr, seed))
            for key, rates in tried.items()
            for lr in rates
            for seed in range(config.seeds)
        }
        cells = sweep.run({name: cell for name, (_, _, cell) in wanted.items()}, what=f"round {round_ + 1}")
        sweep.check()
        points: dict[Key, dict[float, bool]] = defaultdict(dict)
        for cell in cells:
            key, lr, _ = wanted[cell.name]
            points[key][lr] = points[key].get(lr, True) and verdict(cell) == "stable"
        more = {key: rate for key in tried if (rate := next_rate(points[key], config.factor)) is not None}
        if not more:
            return analyse(read_cells(sweep.folder))
        for key, rate in more.items():
            tried[key].append(rate)
        round_ += 1


def verdict(cell: Cell) -> str:
    return judge([r["loss"] for r in cell.of_kind("train")], cell.status)


# -- the result -------------------------------------------------------------------------------------------------------
def analyse(cells: Sequence[Cell]) -> dict[str, Any]:
    """The map from finished cells: every cell, every point, and per scheme and depth the widest stable region."""
    if not cells:
        raise InputError("no finished run was found; run the sweep first, or look at its failure.json files")
    rows = []
    for cell in cells:
        train = cell.of_kind("train")
        spikes = gradient_spikes([r["grad_norm"] for r in train])
        rows.append({**cell_row(cell), "verdict": verdict(cell), "gradient_spikes": spikes})
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["depth"], row["scheme"]].append(row)
    regions = [_region(scheme, depth, found) for (depth, scheme), found in sorted(groups.items())]
    return {
        "kind": "stability", "criteria": _criteria(), "regions": regions, "claims": _claims(regions), "cells": rows,
        "statements": [_sentence(region) for region in regions],
    }  # fmt: skip


def _criteria() -> str:
    return " ".join((__doc__ or "").partition("A run is")[2].split()).replace("*", "")


def _region(scheme: str, depth: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    best = min((r["loss"] for r in rows if r["loss"] is not None and r["verdict"] == "stable"), default=None)
    lines = []
    for warmup in sorted({row["warmup"] for row in rows}):
        here = [row for row in rows if row["warmup"] == warmup]
        points = []
        for lr in sorted({row["lr"] for row in here}):
            runs = [row for row in here if row["lr"] == lr]
            losses = [r["loss"] for r in runs if r["verdict"] == "stable"]
            fine = len(losses) == len(runs)
            points.append({
                "lr": lr, "stable": fine, "unstable_seeds": len(runs) - len(losses), "seeds": len(runs),
                "loss": stats.fmean(losses) if fine else None, "verdicts": sorted({r["verdict"] for r in runs}),
                "gradient_spikes": stats.fmean(r["gradient_spikes"] for r in runs),
            })  # fmt: skip
        below, above = bracket({p["lr"]: p["stable"] for p in points})
        known = [p for p in points if p["loss"] is not None]
        usable = [p["lr"] for p in known if best is not None and p["loss"] <= best + USABLE]
        per_seed = {
            seed: bracket({r["lr"]: r["verdict"] == "stable" for r in here if r["seed"] == seed})[0]
            for seed in sorted({r["seed"] for r in here})
        }
        best_per_seed = {
            seed: min((r["loss"] for r in here if r["seed"] == seed and r["verdict"] == "stable"), default=None)
            for seed in per_seed
        }
        lines.append({
            "warmup": warmup, "best_per_seed": best_per_seed, "edge": below, "unstable_from": above,
            "best_loss": min((p["loss"] for p in known), default=None),
            "usable": [min(usable), max(usable)] if usable else None, "edge_per_seed": per_seed, "points": points,
        })  # fmt: skip
    widest = max(lines, key=lambda line: (line["edge"] or 0.0, -line["warmup"]))
    return {"scheme": scheme, "depth": depth, "steps": rows[0]["steps"], "warmups": lines, "widest": widest["warmup"]}


def _sentence(region: dict[str, Any]) -> str:
    lines = region["warmups"]
    widest = next(line for line in lines if line["warmup"] == region["widest"])
    name = f"{region['scheme']} at {region['depth']} layers"
    if widest["edge"] is None:
        return f"{name}: no stable learning rate was found."
    edges = ", ".join(f"{_show(line['edge'])} with {line['warmup']} steps" for line in lines)
    losses = ", ".join(f"{_show(line['best_loss'])}" for line in lines)
    bound = "" if widest["unstable_from"] is not None else " (nothing unstable was found)"
    return f"{name}: stable up to a learning rate of {edges} of warm-up{bound}; best loss {losses}, in the same order."


def _show(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _claims(regions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Post-Norm needs warm-up at depth and Pre-Norm does not, by two numbers: where the edge lies, and the best loss."""
    found = []
    for region in regions:
        if region["scheme"] in NEEDS:
            found += [_claim(region, *number) for number in NUMBERS]
    return [claim for claim in found if claim is not None]


def _claim(region: dict[str, Any], number: str, key: str, margin: float) -> dict[str, Any] | None:
    first, last = region["warmups"][0], region["warmups"][-1]
    if first["warmup"] != 0 or last["warmup"] == 0:
        return None
    without, with_ = first[key], last[key]
    both = [seed for seed in without if without[seed] is not None and with_.get(seed) is not None]
    gain = (lambda a, b: math.log2(b / a)) if key == "edge_per_seed" else (lambda a, b: a - b)
    values = [gain(without[seed], with_[seed]) for seed in both]
    test, needs = paired(values), NEEDS[region["scheme"]]
    helps = test.significant and test.mean is not None and test.mean > 0
    if needs:
        outcome = "confirmed" if helps else "refuted" if test.high is not None and test.high < margin else "undecided"
    else:
        outcome = "refuted" if helps else "confirmed" if test.high is not None and test.high < margin else "undecided"
    where = f"at {region['depth']} layers, in {region['steps']} steps"
    text = f"{region['scheme']} {'needs' if needs else 'does not need'} warm-up {where}"
    return {"claim": text, "verdict": outcome, "values": values, "number": number, **test.to_dict()}


__all__ = ["StabilityConfig", "analyse", "bracket", "gradient_spikes", "judge", "next_rate", "stability"]
