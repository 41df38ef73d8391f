"""What the claims about length share: a `lengthgen` experiment carried out in a folder, and its scores as numbers a seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from normlab.experiments.claims.evidence import Measurement, curve
from normlab.experiments.lengthgen.presets import Options
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import LengthGeneralization, ScoreRow
from normlab.experiments.protocol import Place, run
from normlab.schemes.names import label, parse_scheme


def trained(folder: Path, options: Options, *, seeds: int) -> LengthGeneralization:
    """The experiment, brought to its end in this folder; what is finished there is only read."""
    request = LengthgenRequest(**{**options, "seeds": seeds})  # type: ignore[arg-type]
    found = run(request, Place(folder, workers=1, quiet=True))
    assert isinstance(found, LengthGeneralization)
    return found


def rows_of(found: LengthGeneralization, scheme: str, weights: str = "raw", fix: str = "none") -> list[ScoreRow]:
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
    found: LengthGeneralization, scheme: str, *, metric: str, name: str, arm: str = "", fix: str = "none"
) -> Measurement:
    """A metric of one scheme over the lengths."""
    rows = table(rows_of(found, scheme, fix=fix), metric)
    return curve(name, found.config.test_lengths, rows, arm or scheme, axis="length")


def seconds_of(*found: LengthGeneralization) -> float:
    """What the runs cost on one core."""
    return sum(note.seconds for one in found for note in one.runs.values())


def settings_of(found: LengthGeneralization) -> dict[str, str | int | float | bool]:
    config = found.config
    model = {"preset": config.preset, "task": config.task.name, "norm": config.norm, "batch": config.batch}
    train = {
        "steps": config.steps,
        "lr": config.lrs[0],
        "schedule": config.schedule,
        "weight_decay": config.weight_decay,
    }
    return {**model, **train, "train_length": config.train_length}


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
