"""Where a monitor's values go: a JSON-lines file, TensorBoard, wandb or trackio, each a `sink(step, values)`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from normlab.errors import require
from normlab.report.terminal import finite

Sink = Callable[[int, dict[str, float]], None]


def jsonl(path: str | Path) -> Sink:
    """Append one line per measured step, flushed: a run's log.jsonl."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)

    def sink(step: int, values: dict[str, float]) -> None:
        with open(place, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **finite(values)}, allow_nan=False) + "\n")

    return sink


def tensorboard(folder: str | Path) -> Sink:
    require("tensorboard", extra="tensorboard", purpose="writing TensorBoard events")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def sink(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return sink


def wandb() -> Sink:
    """Into the run that `wandb.init` has started."""
    package = require("wandb", extra="wandb", purpose="logging to wandb")
    return lambda step, values: package.log(values, step=step)


def trackio() -> Sink:
    """Into the run that `trackio.init` has started."""
    package = require("trackio", extra="trackio", purpose="logging to trackio")
    return lambda step, values: package.log(values, step=step)
