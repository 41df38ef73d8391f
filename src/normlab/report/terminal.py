"""What a person sees in a terminal: sparklines, bars, progress with an ETA.

Tables go to stdout, progress to stderr, so that `--json` owns stdout.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, TypeVar

from rich.console import Console

Item = TypeVar("Item")
_BLOCKS = "▁▂▃▄▅▆▇█"


def console(*, stderr: bool = False) -> Console:
    """At most 100 columns where the output goes to a file or a pipe; else as wide as the terminal.

    Brackets and colons are what they are: a folder may be called [/bold] or :smile:.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 100
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def columns() -> int:
    """How wide a text for stdout may be: the terminal, what COLUMNS says, or 100 for a file or a pipe; never below 60."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return max(60, shutil.get_terminal_size((100, 24)).columns) if known else 100


_FARES = {"fine": "·", "note": "i", "warn": "!", "bad": "X"}


def strip(fares: Sequence[str], *, width: int) -> str:
    """One sign a place ("fine", "note", "warn", "bad"); of neighbours that share a sign, the worst."""
    order = list(_FARES)
    size = max(1, -(-len(fares) // max(1, width)))
    groups = [fares[i : i + size] for i in range(0, len(fares), size)]
    return "".join(_FARES[max(group, key=order.index)] for group in groups)


def print_json(value: object) -> None:
    """Machine-readable on stdout, and nothing else there. NaN and infinities become null: JSON has neither."""
    sys.stdout.write(json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def print_page(page: Path | None) -> None:
    """Where the page is; nothing where it could not be written, which a warning has said."""
    if page is not None:
        console().print(f"page: {page}", markup=False)


def finite(value: Any) -> Any:
    """The same value as JSON can hold it: None for a float that is not finite, a path as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def show(value: object) -> str:
    """A short text for a cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value != value:
            return "nan"
        value += 0.0  # no -0
        size = abs(value)
        return f"{value:.3g}" if size != 0 and (size < 1e-3 or size >= 1e5) else f"{value:.4g}"
    return str(value)


def sparkline(values: Sequence[float], *, log: bool = False, scale: tuple[float, float] | None = None) -> str:
    """One character a value, scaled between the smallest and the largest; a gap where a value is not finite.

    With a `scale` (lowest, highest) several lines can be compared; what lies outside stands at its end.
    """
    points = [math.log(v) if log and v > 0 else (v if not log else math.nan) for v in values]
    known = [p for p in points if math.isfinite(p)]
    if not known:
        return " " * len(points)
    ends = known if scale is None else [math.log(end) if log else end for end in scale]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    top = len(_BLOCKS) - 1
    places = [round(min(1.0, max(0.0, (p - low) / span)) * top) if math.isfinite(p) else None for p in points]
    return "".join(" " if place is None else _BLOCKS[place] for place in places)


def bar(value: float, largest: float, *, width: int = 12) -> str:
    """A horizontal bar of eighths."""
    if not (math.isfinite(value) and largest > 0):
        return ""
    eighths = round(max(0.0, min(1.0, value / largest)) * width * 8)
    return "█" * (eighths // 8) + ("" if eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8])


def progress(items: Iterable[Item], *, what: str, total: int | None = None, quiet: bool = False) -> Iterator[Item]:
    """Iterate with a bar and an ETA on a terminal, a plain line every few seconds elsewhere (both on stderr)."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    if quiet:
        yield from items
    elif sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as shown:
            yield from shown.track(items, total=total, description=what)
    else:
        start = last = time.monotonic()
        for count, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - last > 5:
                last = now
                left = f", about {(now - start) / count * (total - count):.0f} s left" if total else ""
                print(f"{what}: {count}{f'/{total}' if total else ''}{left}", file=sys.stderr, flush=True)


@contextmanager
def meter(
    what: str, *, total: float, done: Callable[[], float], quiet: bool = False, every: float = 1.0
) -> Iterator[None]:
    """The same for work that goes on elsewhere: `done()` of `total` is looked at every so often, in a thread."""
    if quiet:
        yield
        return
    ended = threading.Event()
    show = _bar if sys.stderr.isatty() else _lines
    thread = threading.Thread(target=show, args=(what, total, done, ended, every), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar(what: str, total: float, done: Callable[[], float], ended: threading.Event, every: float) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, speed_estimate_period=120) as shown:
        task = shown.add_task(what, total=total)
        shown.update(task, completed=done())
        while not ended.wait(every):
            shown.update(task, completed=done())


def _lines(what: str, total: float, done: Callable[[], float], ended: threading.Event, every: float) -> None:
    begun, first = time.monotonic(), done()  # what an earlier run did says nothing about this one's speed
    last, shown = begun, -1
    while not ended.wait(every):
        now = time.monotonic()
        if now - last <= 5:
            continue
        found = done()
        share, gained = int(100 * found / total), found - first
        if share == shown and now - last < 60:
            continue
        last, shown = now, share
        left = f", about {(now - begun) / gained * (total - found):.0f} s left" if gained > 0 else ""
        print(f"{what}: {share} %{left}", file=sys.stderr, flush=True)
