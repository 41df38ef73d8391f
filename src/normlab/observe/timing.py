"""Times that survive a busy machine: candidates take turns in one process, in alternating order.

A ratio is taken within each round, between two runs that are fractions of a second apart; its median over rounds is
reported with the quartiles. Times of different rounds, let alone of different processes, are never compared. Beside the
seconds of the wall's clock stand the processor's: they say more where other processes take the cores away.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from normlab.report.terminal import progress


@dataclass(frozen=True)
class Times:
    """Seconds of each round: by the clock on the wall, and of this process's processors."""

    wall: tuple[float, ...]
    processor: tuple[float, ...]

    def on(self, device: str) -> tuple[float, ...]:
        """What to compare: on the CPU the processor's seconds, which other processes do not stretch."""
        return self.processor if device.startswith("cpu") else self.wall


@dataclass(frozen=True)
class Quartiles:
    low: float
    middle: float
    high: float


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2, repeat: int = 1, what: str = ""
) -> dict[str, Times]:
    """Seconds of each candidate (`repeat` calls together) in each round. The order turns and is reversed in between.

    A candidate that runs on an accelerator must end with a number on the host, so that the device is done. `what` names
    the work to whoever waits; nothing is said without it.
    """
    names = list(candidates)
    wall: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        for _ in range(warmup):
            candidates[name]()
    gc.collect()
    was = gc.isenabled()
    gc.disable()  # a collection would be charged to whoever runs then
    gc.freeze()  # what is there stays: a collection after each round looks at that round's objects alone
    try:
        for number in progress(range(rounds), what=what, quiet=not what):
            shift = number // 2 % len(names)
            order = names[shift:] + names[:shift]
            for name in order if number % 2 == 0 else reversed(order):
                start, start_processor = time.perf_counter(), time.process_time()
                for _ in range(repeat):
                    candidates[name]()
                processor[name].append((time.process_time() - start_processor) / repeat)
                wall[name].append((time.perf_counter() - start) / repeat)
            gc.collect()
    finally:
        gc.unfreeze()
        if was:
            gc.enable()
    return {name: Times(tuple(wall[name]), tuple(processor[name])) for name in names}


def quartiles(values: Sequence[float]) -> Quartiles:
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Quartiles:
    """Ours over theirs, round by round: below 1 ours is faster."""
    return quartiles([one / other for one, other in zip(ours, theirs, strict=True)])


@contextmanager
def one_thread() -> Iterator[None]:
    """On one thread the processor's seconds are what a step takes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
