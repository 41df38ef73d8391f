"""What a training step costs, scheme beside scheme: steps of a scheme and of `pre_norm` in turn, on one thread.

The runs of a sweep share the machine with each other and with whatever else it does, at different times: their speeds
compare nothing. Pairs of steps that follow each other do. `cost.json` in the sweep's folder keeps them.
"""

from __future__ import annotations

import json
import statistics as stats
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from normlab.experiments.runs.config import RunConfig, setting_of
from normlab.experiments.runs.trainer import RunTrainer
from normlab.files import write_json
from normlab.observe.timing import Quartiles, interleave, one_thread, quartiles
from normlab.report.terminal import progress
from normlab.schemes import scheme


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, round by round, of a scheme and of `pre_norm` beside it."""

    seconds: list[float]
    reference: list[float]

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.seconds, self.reference, strict=True)]


@dataclass(frozen=True)
class RelativeCost:
    """The time of a step over the baseline's: median and quartiles over rounds; and in seconds of one moment."""

    time: float
    low: float
    high: float
    seconds: float


Costs = Mapping[tuple[str, str], StepTimes]
"""By setting and scheme."""
REFERENCE = "pre_norm"
ROUNDS = 7
FILE = "cost.json"


def time_beside(cell: RunConfig, *, device: str = "cpu", rounds: int = ROUNDS) -> StepTimes:
    """Seconds of a step of this cell and of the same cell with `pre_norm`, round by round; the first is not counted."""
    reference = cell.replace(model=cell.model.replace(scheme=scheme(REFERENCE)))
    cells = [cell] if cell.model == reference.model else [cell, reference]
    pair = [RunTrainer(c.build(device=device), c, Path(".")) for c in cells]  # nothing is written
    # A step ends with the loss as a number, so the device is done.
    steps = {name: trainer._one for name, trainer in zip(("cell", "reference"), pair, strict=False)}
    times = interleave(steps, rounds=rounds, warmup=1)
    seconds = {name: list(found.on(device)) for name, found in times.items()}
    return StepTimes(seconds["cell"], seconds.get("reference", seconds["cell"]))


def measure(folder: Path, wanted: Iterable[tuple[str, RunConfig]], *, device: str, quiet: bool) -> None:
    """Time what `cost.json` does not have yet."""
    known = read_costs([folder])
    missing = [(name, cell) for name, cell in wanted if (cell.setting(), name) not in known]
    with one_thread():
        for name, cell in progress(missing, what="timing, scheme beside scheme", quiet=quiet):
            known[cell.setting(), name] = time_beside(cell, device=device)
            rows = [{"setting": key[0], "scheme": key[1], **asdict(found)} for key, found in known.items()]
            write_json(folder / FILE, {"rows": rows})


def read_costs(folders: Sequence[str | Path]) -> dict[tuple[str, str], StepTimes]:
    """By (setting, scheme); a file that is missing or damaged is no cost, since measuring again is cheap."""
    found: dict[tuple[str, str], StepTimes] = {}
    for folder in folders:
        try:
            rows = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))["rows"]
            for row in rows:
                key = (setting_of(json.loads(row["setting"])), str(row["scheme"]))
                found[key] = StepTimes(row["seconds"], row["reference"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def relative(cost: StepTimes | None, base: StepTimes | None) -> RelativeCost | None:
    """Over the baseline's, by way of `pre_norm`'s beside it."""
    if cost is None or base is None:
        return None
    scale = 1.0 if cost is base else stats.median(base.ratios)
    over = Quartiles(1.0, 1.0, 1.0) if cost is base else quartiles(cost.ratios)
    seconds = stats.median(base.seconds) * over.middle / scale  # speeds of one moment, the baseline's
    return RelativeCost(over.middle / scale, over.low / scale, over.high / scale, seconds)
