"""Claims about the loss of trained networks: the ladder (`normlab compare --preset ladder-small`), as far as it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from normlab.experiments.claims.bench import Bench, Findings, measure
from normlab.experiments.claims.evidence import Measurement, SettingValue, curve, number
from normlab.experiments.compare.experiment import EXPERIMENT
from normlab.experiments.compare.presets import LADDER_SCHEMES, preset
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.compare.result import Comparison, SchemeRow, SettingResult
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.sweep import Sweep

LOSS, DECAY = "held-out loss", "change of the loss through the decay"
DECAY_START = "held-out loss where the decay begins"
SHARES = (0.25, 0.5, 0.75, 1.0)
FEWEST = 2  # seeds that all schemes share


def rung(bench: Bench) -> tuple[SettingResult, list[int], Comparison]:
    """The largest models of which every scheme has finished two seeds or more; else the small ones are trained here."""
    found = _finished(bench.folder.parent.parent / "ladder-12", LADDER_SCHEMES)
    return found if found is not None else small(bench, LADDER_SCHEMES)


def small(bench: Bench, schemes: Sequence[str]) -> tuple[SettingResult, list[int], Comparison]:
    """The small models where two seeds of these schemes have been finished; else a quarter of it is trained here."""
    found = _finished(bench.folder.parent.parent / "ladder-small", schemes)
    if found is not None:
        return found
    first, folder = "ladder-quarter", bench.folder.parent / "ladder-quarter"
    found = _finished(folder, schemes)
    if found is not None and len(found[1]) >= len(bench.seeds):
        return found
    request = CompareRequest(**{**preset(first), "seeds": max(len(bench.seeds), FEWEST)})  # type: ignore[arg-type]
    EXPERIMENT.carry_out(request, Sweep(folder, HereExecutor(), quiet=True))
    found = _finished(folder, schemes)
    assert found is not None
    return found


def _finished(folder: Path, schemes: Sequence[str]) -> tuple[SettingResult, list[int], Comparison] | None:
    if not any(folder.glob("*/summary.json")):
        return None
    read = EXPERIMENT.analyse([folder])
    result = replace(read, notes=[note.replace(str(folder), folder.name) for note in read.notes])
    (setting,) = result.settings
    seeds = shared(setting)
    whole = set(schemes) <= {row.scheme for row in setting.schemes} and len(seeds) >= FEWEST
    return (setting, seeds, result) if whole else None


def shared(setting: SettingResult) -> list[int]:
    """The seeds that every scheme has finished."""
    known = [{seed for seed, loss in row.losses.items() if loss is not None} for row in setting.schemes]
    return sorted(set.intersection(*known)) if known else []


@measure("ladder", seeds=5, seconds=700)
def ladder(bench: Bench) -> Findings:
    setting, seeds, result = rung(bench)
    measurements: list[Measurement] = []
    for row in setting.schemes:
        steps = [round(share * setting.setting.steps) for share in SHARES]
        curves = [[at_step(row, seed, step) for step in steps] for seed in seeds]
        measurements.append(curve(LOSS, SHARES, curves, row.scheme, axis="share of the training"))
        measurements.append(number(DECAY, [through_decay(row, seed) for seed in seeds], row.scheme))
        measurements.append(number(DECAY_START, [at_decay(row, seed) for seed in seeds], row.scheme))
        ends = [row.losses[seed] or float("nan") for seed in seeds]
        measurements.append(number("held-out loss at the end, more sequences", ends, row.scheme))
    shape = setting.setting
    settings: dict[str, SettingValue] = {
        **per_parameter(setting),
        "depth": shape.depth, "dim": shape.dim, "tokens": shape.tokens, "batch": shape.batch, "length": shape.length,
        "recipe": shape.recipe, "optimizer": shape.optimizer, "schedule": shape.schedule,
    }  # fmt: skip
    rates = ", ".join(f"{row.scheme} {row.lr:g}" for row in setting.schemes)
    notes = [
        f"{len(seeds)} seeds that every scheme has finished. Best rates: {rates}.",
        "Bytes of the plays that ship; dense_former is the static-routing control.",
        *result.notes,
    ]
    return Findings(measurements, settings, notes, sum(r.seconds for r in result.cells))


def _points(row: SchemeRow, seed: int) -> Mapping[int, float]:
    return dict(zip(row.curve[seed].step, row.curve[seed].loss, strict=True))


def at_step(row: SchemeRow, seed: int, step: int) -> float:
    """At the validation that is nearest."""
    points = _points(row, seed)
    return points[min(points, key=lambda s: abs(s - step))]


def per_parameter(setting: SettingResult) -> dict[str, SettingValue]:
    """Tokens over the baseline's parameters: the measure of how long was trained."""
    base = setting.reference
    return {"tokens per parameter": round(setting.setting.tokens / base.parameters, 2), "steps": setting.setting.steps}


def at_decay(row: SchemeRow, seed: int) -> float:
    return at_step(row, seed, row.curve[seed].decay_start)


def through_decay(row: SchemeRow, seed: int) -> float:
    points = _points(row, seed)
    return points[max(points)] - at_decay(row, seed)
