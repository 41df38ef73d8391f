"""Runs in the terminal while they train: the loss, the effect of each layer, which layer gets the gradient.

The logs are read as they grow, so that the view can be of runs in any process.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from normlab.experiments.runs.records import LayerRecord
from normlab.experiments.runs.tail import LogTail
from normlab.report import console, sparkline
from normlab.report.colours import scheme_colour

EVERY = 0.5  # seconds between two looks
LINES = 8.0  # seconds between two lines where there is no terminal
WIDEST = 40  # layers that get a sign each


def arm_name(scheme: str, warmup: int) -> str:
    return f"{scheme} + warm-up" if warmup else scheme


@dataclass
class Watched:
    """One run and how far its log was read."""

    scheme: str
    folder: Path
    steps: int
    warmup: int = 0
    log: LogTail = field(init=False)

    def __post_init__(self) -> None:
        self.log = LogTail(self.folder / "log.jsonl")

    @property
    def name(self) -> str:
        return arm_name(self.scheme, self.warmup)

    @property
    def step(self) -> int:
        return self.log.training[-1].step if self.log.training else 0

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.log.validation]

    @property
    def look(self) -> LayerRecord | None:
        return self.log.layers[-1] if self.log.layers else None


def view(runs: Sequence[Watched]) -> list[Text]:
    """Three lines a run. All runs share the scale of a row, so that heights can be compared."""
    known = [loss for run in runs for loss in run.losses]
    effects = [value for run in runs for value in effect(run.look)]
    shares = [value for run in runs for value in gradient(run.look)]
    width = max((len(run.name) for run in runs), default=0) + 2
    lines: list[Text] = []
    for run in runs:
        losses = run.losses
        now = f"held-out loss {losses[-1]:.2f} nats  " if losses else "waiting"
        head = Text(f"{run.name:<{width}}", style=f"bold {scheme_colour(run.scheme)}")
        head.append(f"step {run.step:>4}/{run.steps}  {now}", style="default not bold")
        head.append(sparkline(losses[-30:], scale=_scale(known)), style=scheme_colour(run.scheme))
        lines.append(head)
        lines.append(_row("effect", effect(run.look), effects, "of what the head reads"))
        lines.append(_row("gradient", gradient(run.look), shares, "of the whole"))
    return lines


def effect(look: LayerRecord | None) -> list[float]:
    """Of each layer: the mean of its attention's and its FFN's."""
    attention, ffn = (branches(None if look is None else look.effect, kind) for kind in (0, 1))
    return [(one + other) / 2 for one, other in zip(attention, ffn, strict=True)]


def branches(values: Sequence[float | None] | None, kind: int) -> list[float]:
    """Of a quantity that every branch has: the attention's (0) or the FFN's (1), layer by layer."""
    return [math.nan if value is None else value for value in (values or ())[kind::2]]


def gradient(look: LayerRecord | None) -> list[float]:
    return look.gradient_share or [] if look is not None else []


def _row(name: str, values: Sequence[float], everywhere: Sequence[float], unit: str) -> Text:
    if not values:
        return Text(f"  {name:<15}", style="dim")
    step = -(-len(values) // WIDEST)
    ends = f"  layer 1: {values[0]:.2g}, layer {len(values)}: {values[-1]:.2g} {unit}"
    return Text(f"  {name:<15}{sparkline(values[::step], log=True, scale=_scale(everywhere))}{ends}")


def _scale(values: Sequence[float]) -> tuple[float, float] | None:
    finite = [value for value in values if math.isfinite(value) and value > 0]
    return (min(finite), max(finite)) if finite else None


@contextmanager
def watching(runs: Sequence[Watched], *, quiet: bool) -> Iterator[None]:
    """The view, refreshed in a thread while the work goes on; its last state stays on the terminal."""
    if quiet:
        yield
        return
    ended = threading.Event()
    show = _live if sys.stdout.isatty() else _lines
    thread = threading.Thread(target=show, args=(runs, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _live(runs: Sequence[Watched], ended: threading.Event) -> None:
    with Live(console=console(), refresh_per_second=4) as shown:
        last = False
        while not last:
            last = ended.wait(EVERY)
            for run in runs:
                run.log.read()
            shown.update(Group(*view(runs)))


def _lines(runs: Sequence[Watched], ended: threading.Event) -> None:
    said = time.monotonic()
    while not ended.wait(EVERY):
        if time.monotonic() - said < LINES:
            continue
        said = time.monotonic()
        for run in runs:
            run.log.read()
        words = [f"{run.name} {run.step}/{run.steps}" for run in runs]
        print(f"training: {', '.join(words)}", file=sys.stderr, flush=True)
    for run in runs:
        run.log.read()
    for line in view(runs):
        console().print(line.plain)
