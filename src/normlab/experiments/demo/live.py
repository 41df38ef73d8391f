"""Runs in the terminal while they train: the loss, what each layer adds, which layer gets the gradient.

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


@dataclass
class Watched:
    """One run and how far its log was read."""

    scheme: str
    folder: Path
    steps: int
    log: LogTail = field(init=False)

    def __post_init__(self) -> None:
        self.log = LogTail(self.folder / "log.jsonl")

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
    """Four lines a run. All runs share the scale of a row, so that heights can be compared."""
    known = [loss for run in runs for loss in run.losses]
    adds = [value for run in runs for value in (*branches(run.look, 0), *branches(run.look, 1))]
    shares = [value for run in runs for value in gradient(run.look)]
    lines: list[Text] = []
    for run in runs:
        losses = run.losses
        now = f"held-out loss {losses[-1]:.2f} nats  " if losses else "waiting"
        head = Text(f"{run.scheme:<16}", style=f"bold {scheme_colour(run.scheme)}")
        head.append(f"step {run.step:>4}/{run.steps}  {now}", style="default not bold")
        head.append(sparkline(losses[-30:], scale=_scale(known)), style=scheme_colour(run.scheme))
        lines.append(head)
        lines.append(_row("attention adds", branches(run.look, 0), adds, "x its input"))
        lines.append(_row("FFN adds", branches(run.look, 1), adds, "x its input"))
        lines.append(_row("gradient", gradient(run.look), shares, "of the whole"))
    return lines


def branches(look: LayerRecord | None, kind: int) -> list[float]:
    """What the attention (0) or the FFN (1) of each layer adds, over what it reads."""
    found = look.contribution if look is not None and look.contribution is not None else []
    return [value if value is not None else math.nan for value in found[kind::2]]


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
        words = [f"{run.scheme} {run.step}/{run.steps}" for run in runs]
        print(f"training: {', '.join(words)}", file=sys.stderr, flush=True)
    for run in runs:
        run.log.read()
    for line in view(runs):
        console().print(line.plain)
