"""What a training step costs, scheme beside scheme: steps of a scheme and of `pre_norm` in turn, on one thread.

The runs of a sweep share the machine with each other and with whatever else it does, at different times: their speeds
compare nothing. Pairs of steps that follow each other do. `cost.json` in the sweep's folder keeps them.
"""

from __future__ import annotations

import json
import statistics as stats
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from normlab.experiments.cell import CellConfig, CellTrainer, build
from normlab.experiments.folder import setting_of
from normlab.files import write_json
from normlab.report.terminal import progress
from normlab.schemes import scheme

REFERENCE = "pre_norm"
ROUNDS = 7
FILE = "cost.json"


def time_beside(cell: CellConfig, *, device: str = "cpu", rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds of a step of this cell and of the same cell with `pre_norm`, round by round; the first is not counted."""
    reference = cell.replace(model=cell.model.replace(scheme=scheme(REFERENCE)))
    cells = [cell] if cell.model == reference.model else [cell, reference]
    pair = [CellTrainer(build(c, device=device), c, Path(".")) for c in cells]  # nothing is written
    times: list[list[float]] = [[] for _ in pair]
    for turn in range(rounds + 1):
        for which in range(len(pair))[:: 1 if turn % 2 else -1]:  # neither is always the one that comes second
            times[which].append(_seconds(pair[which]))
    return {"seconds": times[0][1:], "reference": times[-1][1:]}


def _seconds(trainer: CellTrainer) -> float:
    clock = time.process_time if trainer.device.type == "cpu" else time.perf_counter
    begun = clock()
    trainer._one()  # ends with the loss as a number, so the device is done
    return clock() - begun


def measure(folder: Path, wanted: Iterable[tuple[str, CellConfig]], *, device: str, quiet: bool) -> None:
    """Time what `cost.json` does not have yet."""
    known = read_costs([folder])
    missing = [(name, cell) for name, cell in wanted if (setting_of(cell), name) not in known]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, cell in progress(missing, what="timing, scheme beside scheme", quiet=quiet):
            known[setting_of(cell), name] = time_beside(cell, device=device)
            rows = [{"setting": key[0], "scheme": key[1], **found} for key, found in known.items()]
            write_json(folder / FILE, {"rows": rows})
    finally:
        torch.set_num_threads(threads)


def read_costs(folders: Sequence[str | Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """By (setting, scheme); a file that is missing or damaged is no cost, since measuring again is cheap."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for folder in folders:
        try:
            rows = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))["rows"]
            found.update({(r["setting"], r["scheme"]): {k: r[k] for k in ("seconds", "reference")} for r in rows})
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def relative(cost: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The time of a step over the baseline's: median and quartiles over rounds, each by way of `pre_norm`'s beside it."""
    if cost is None or base is None:
        return None
    scale = 1.0 if cost is base else stats.median(_ratios(base))
    first, middle, third = (1.0, 1.0, 1.0) if cost is base else stats.quantiles(_ratios(cost), n=4, method="inclusive")
    seconds = stats.median(base["seconds"]) * middle / scale  # speeds of one moment, the baseline's
    return {"time": middle / scale, "low": first / scale, "high": third / scale, "seconds": seconds}


def _ratios(cost: Mapping[str, Any]) -> list[float]:
    return [a / b for a, b in zip(cost["seconds"], cost["reference"], strict=True)]
