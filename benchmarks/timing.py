"""Ratios that survive a busy machine: candidates take turns in one process, in alternating order.

A ratio is taken within each round, between two runs that are fractions of a second apart, and the median over rounds
is reported with its quartiles. Times of different rounds, let alone of different runs, are never compared. Beside the
ratio of wall time stands that of processor time: it says more where other processes take the cores away.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normlab.report import console, progress, table


@dataclass
class Times:
    """Seconds of each round."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


Rounds = dict[str, Times]  # by candidate


def arguments(what: str) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--rounds", type=int, default=None, help="times each candidate runs (default: the benchmark's)")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    return parser


def interleave(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warmup: int = 2,
    repeat: int = 1,
    what: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Seconds of each candidate (`repeat` calls together) in each round. The order turns and is reversed in between.

    `time.process_time` as the clock counts this process's CPU seconds, for a machine that others keep busy.
    """
    names = list(candidates)
    seconds: Rounds = {name: Times() for name in names}
    for name in names:
        for _ in range(warmup):
            candidates[name]()
    gc.collect()
    gc.disable()  # a collection would be charged to whoever runs then
    try:
        for number in progress(range(rounds), what=what, quiet=not what):
            shift = number // 2 % len(names)
            order = names[shift:] + names[:shift]
            for name in order if number % 2 == 0 else reversed(order):
                start, start_processor = time.perf_counter(), time.process_time()
                for _ in range(repeat):
                    candidates[name]()
                seconds[name].processor.append((time.process_time() - start_processor) / repeat)
                seconds[name].wall.append((clock() - start) / repeat)
            gc.collect()
    finally:
        gc.enable()
    return seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(seconds: Rounds, ours: str) -> dict[str, dict[str, float]]:
    """Of each other candidate: time of `ours` over its time (below 1: ours is faster), and its own milliseconds."""
    found = {}
    for name, theirs in seconds.items():
        low, middle, high = _ratio(seconds[ours].wall, theirs.wall)
        found[name] = {
            "milliseconds": 1e3 * statistics.median(theirs.wall),
            "ratio": middle,
            "ratio_low": low,
            "ratio_high": high,
            "processor_ratio": _ratio(seconds[ours].processor, theirs.processor)[1],
        }
    return found


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    return quartiles([one / other for one, other in zip(ours, theirs, strict=True)])


def show(title: str, found: Mapping[str, Mapping[str, Any]], ours: str) -> None:
    """`ratios`, with further columns if there are any, as a table."""
    known = {"milliseconds", "ratio", "ratio_low", "ratio_high", "processor_ratio"}
    rows = [
        {
            "candidate": name,
            "ms (median)": round(row["milliseconds"], 2),
            f"{ours} / it": "-" if name == ours else f"{row['ratio']:.3f}",
            "quartiles": "-" if name == ours else f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}",
            "processor time": "-" if name == ours else f"{row['processor_ratio']:.3f}",
            **{key: value for key, value in row.items() if key not in known},
        }
        for name, row in found.items()
    ]
    console().print(table(rows, title=title))
