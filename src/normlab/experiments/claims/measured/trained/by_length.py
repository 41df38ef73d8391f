"""What the claims about length share: a `lengthgen` experiment carried out in a folder, and its scores as numbers a seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normlab.experiments.claims.evidence import Measurement, SettingValue, curve
from normlab.experiments.executors.here import HereExecutor
from normlab.experiments.lengthgen.experiment import EXPERIMENT, runs_of
from normlab.experiments.lengthgen.presets import Options
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import Arm, LengthGeneralization, ScoreRow
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.records import LengthScore, read_run
from normlab.experiments.sweep import Sweep
from normlab.results import pick
from normlab.schemes.names import label, parse_scheme
from normlab.training.record import read_log


def trained(folder: Path, options: Options, *, seeds: int) -> LengthGeneralization:
    """The experiment, brought to its end in this folder; what is finished there is only read."""
    request = LengthgenRequest(**{"start": "old", **options, "seeds": seeds})  # type: ignore[arg-type]
    return EXPERIMENT.carry_out(request, Sweep(folder, HereExecutor(), quiet=True))


@dataclass(frozen=True)
class Reached:
    """The scores of an experiment that takes long, at the last step that all of its runs were scored at."""

    config: LengthgenRequest
    rows: list[ScoreRow]
    step: int
    seconds: float

    @property
    def note(self) -> str:
        if self.step == self.config.steps:
            return f"All {self.step:,} steps were trained."
        return (
            f"Step {self.step:,} of {self.config.steps:,}: the rate has not decayed yet, and `make long-runs` goes on."
        )


def reached(folder: Path, options: Options, *, seeds: int) -> Reached:
    """What there is in this folder; where there is nothing yet, the first rung of `evaluate_at` is trained here."""
    request = LengthgenRequest(**{"start": "old", **options, "seeds": seeds})  # type: ignore[arg-type]
    wanted = runs_of(request)
    found = _last_common(folder, request, wanted)
    if found is None:
        sweep = Sweep(folder, HereExecutor(until=min(request.evaluate_at)), quiet=True)
        sweep.settle(request)
        sweep.run(wanted, what="steps")
        sweep.check()
        found = _last_common(folder, request, wanted)
    assert found is not None
    return found


def _last_common(folder: Path, request: LengthgenRequest, wanted: Mapping[str, RunConfig]) -> Reached | None:
    scored = {name: _scored(folder / name, request) for name in wanted}
    common = set.intersection(*(set(steps) for steps in scored.values()))
    if not common:
        return None
    step = max(common)
    rows = [
        ScoreRow(Arm.of(config), config.train.seed, weights, length, "running", score)
        for name, config in wanted.items()
        for weights, by_length in scored[name][step].items()
        for length, score in by_length.items()
    ]
    return Reached(request, rows, step, sum(_seconds(folder / name, step) for name in wanted))


Scores = dict[str, dict[int, LengthScore]]
"""By weights and length."""


def _scored(folder: Path, request: LengthgenRequest) -> dict[int, Scores]:
    """The scores in a run's log and summary, by step."""
    log = folder / "log.jsonl"
    found: dict[int, Scores] = {}
    for record in read_log(log) if log.exists() else []:
        if record.get("kind") == "evaluation" and isinstance(record["weights"], Mapping):
            found[int(str(record["step"]))] = _scores(record["weights"], folder)
    run = read_run(folder)
    if run is not None:
        found[request.steps] = _scores(run.summary.weights, folder)
    return found


def _scores(weights: Mapping[str, object], folder: Path) -> Scores:
    return {
        kind: {int(length): pick(LengthScore, score, source=repr(str(folder))) for length, score in by_length.items()}
        for kind, by_length in weights.items()
        if isinstance(by_length, Mapping)
    }


def _seconds(folder: Path, step: int) -> float:
    """Of a run that has ended, the share up to the step; unknown, and so nothing, for one that goes on."""
    run = read_run(folder)
    return 0.0 if run is None else run.summary.seconds * step / max(run.summary.step, 1)


def rows_of(
    found: LengthGeneralization | Reached, scheme: str, weights: str = "raw", fix: str = "none"
) -> list[ScoreRow]:
    """The rows of one scheme, by seed and then by length."""
    wanted = label(parse_scheme(scheme))
    rows = [r for r in found.rows if (r.arm.scheme, r.weights, r.arm.fix) == (wanted, weights, fix)]
    return sorted(rows, key=lambda r: (r.seed, r.length))


def table(rows: Sequence[ScoreRow], metric: str) -> list[list[float]]:
    """A row of numbers for each seed, a column for each length; nan where it could not be measured."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        value = row.metric(metric)
        by_seed.setdefault(row.seed, []).append(float("nan") if value is None else value)
    return list(by_seed.values())


def at_length(rows: Sequence[ScoreRow], metric: str, length: int) -> list[float]:
    """A number for each seed."""
    return [row[0] for row in table([r for r in rows if r.length == length], metric)]


def over_lengths(
    found: LengthGeneralization | Reached, scheme: str, *, metric: str, name: str, arm: str = "", fix: str = "none"
) -> Measurement:
    """A metric of one scheme over the lengths."""
    rows = table(rows_of(found, scheme, fix=fix), metric)
    return curve(name, found.config.test_lengths, rows, arm or scheme, axis="length")


def seconds_of(*found: LengthGeneralization) -> float:
    """What the runs cost on one core."""
    return sum(note.seconds for one in found for note in one.runs.values())


def settings_of(found: LengthGeneralization | Reached) -> dict[str, SettingValue]:
    config = found.config
    steps = found.step if isinstance(found, Reached) else config.steps
    model: dict[str, SettingValue] = {
        "preset": config.preset,
        "task": config.task.name,
        "norm": config.norm,
        "batch": config.batch,
    }
    train: dict[str, SettingValue] = {
        "steps": steps,
        "lr": config.lrs[0],
        "schedule": config.schedule,
        "weight_decay": config.weight_decay,
    }
    return {**model, "batch": config.batch, **train, "train_length": config.train_length}


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
