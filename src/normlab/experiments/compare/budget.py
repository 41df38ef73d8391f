"""How many steps and seeds fit into the time that a comparison is given."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from normlab.errors import ConfigError
from normlab.experiments import timing
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.request import DEFAULT_BUDGET, CompareRequest
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import RunTrainer
from normlab.experiments.shapes import seconds
from normlab.experiments.sweep import Settled
from normlab.observe.timing import interleave, one_thread

PARALLEL = 0.85  # two runs on two cores share caches and memory: each is a little slower than alone
START = 4.0  # seconds until a new worker trains: importing torch takes three of them
RUN = 0.5  # seconds to build a run and to write its checkpoints
FORWARD = 0.45  # of a step's time: the forward pass, on the smaller batches of what is measured
REPEATS = 3  # steps of each scheme that are timed, after one that is not
ENOUGH = 10.0
"""Training tokens for each parameter of the baseline, below which more seeds are given up for longer runs."""
SecondsPerStep = Mapping[Arm, float]


def settle_size(
    request: CompareRequest, times: Callable[[], SecondsPerStep], parameters: Callable[[], int], *, workers: int
) -> Settled:
    """Steps of a run, from the tokens that are asked for or from the time; and from the time also how many seeds.

    Then steps are timed (`times`) on this machine. Seeds fall until the baseline, with so many `parameters`, has enough
    tokens, and no further than the request allows.
    """
    per_step = request.batch * request.length
    if request.tokens is not None:
        if request.tokens < per_step:
            raise ConfigError(
                f"tokens: {request.tokens} is less than one step of {request.batch} x {request.length} = {per_step} tokens"
            )
        return {"steps": request.tokens // per_step}
    known, wanted = times(), ENOUGH * parameters() / per_step
    for seeds in range(request.seeds, request.fewest_seeds, -1):
        steps = affordable_steps(request.with_seeds(seeds), known, workers=workers)
        if steps >= wanted:
            return {"steps": steps, "seeds": seeds}
    fewest = request.with_seeds(min(request.seeds, request.fewest_seeds))
    steps = affordable_steps(fewest, known, workers=workers)
    if steps < 1:
        raise too_small(fewest, known, workers=workers)
    return {"steps": steps, "seeds": fewest.seeds}


def affordable_steps(request: CompareRequest, known: SecondsPerStep, *, workers: int) -> int:
    """As many as the budget has time for; 0 where it has none for one."""
    budget = request.budget or DEFAULT_BUDGET
    available = seconds(budget)
    if available <= 0:
        raise ConfigError(f"--budget: {budget} is no time; give for example 90s, 10m or 2h")

    def needed(steps: int) -> float:
        return total_seconds(request, known, steps, workers=workers)

    if needed(1) > available:
        return 0
    low, high = 1, 2
    while needed(high) <= available:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= available else (low, middle)
    return low


def too_small(request: CompareRequest, known: SecondsPerStep, *, workers: int) -> ConfigError:
    one = math.ceil(total_seconds(request, known, 1, workers=workers))
    return ConfigError(
        f"budget: {request.budget or DEFAULT_BUDGET} is too small for one step of each of the {request.most_runs()} runs and "
        f"what is measured in them, which takes about {one} s here; give more time, or fewer schemes, rates or seeds, or a "
        "smaller model"
    )


def total_seconds(request: CompareRequest, times: SecondsPerStep, steps: int, *, workers: int = 1) -> float:
    """From the timing of steps to the last run: phases one after the other, each on `workers` processes.

    A run takes its steps, and the forward passes of what is measured.
    """
    alone = []
    for arm, one in times.items():
        measure = request.measure or HeldOut.scaled(steps=steps, batch=request.batch, depth=arm.depth)
        alone.append(RUN + one * (steps + FORWARD * measure.passes(arm.depth) / request.batch))
    steps_timed = REPEATS + 1 + 2 * (timing.ROUNDS + 1)  # before the runs and, beside the reference's, after them
    total, started = steps_timed * sum(times.values()), 0
    for count in request.phases():
        runs = [one for one in alone for _ in range(count)]
        used = min(workers, len(runs))
        total += _makespan(runs, used, started=started)
        started = max(started, used)
    return total


def _makespan(runs: Sequence[float], workers: int, *, started: int) -> float:
    """When the last run ends, if each process takes the next one in line, and the first ones a worker that is there."""
    if not runs:
        return 0.0
    slower = PARALLEL if workers > 1 else 1.0
    ends = [one / slower + (0.0 if i < started else START) for i, one in enumerate(runs[:workers])]
    heapq.heapify(ends)
    for one in runs[workers:]:
        heapq.heapreplace(ends, ends[0] + one / slower)
    return max(ends)


def time_steps(runs: Mapping[Arm, RunConfig], device: str = "cpu") -> dict[Arm, float]:
    """Seconds a step of each, from a few steps on the device of the sweep, on one thread."""
    with one_thread():
        return {key: _time_step(config, device) for key, config in runs.items()}


def _time_step(config: RunConfig, device: str) -> float:
    trainer = RunTrainer(config.build(device=device), config, Path("."))  # nothing is written: `run` is not called
    times = interleave({"step": trainer._one}, rounds=REPEATS, warmup=1)
    return statistics.median(times["step"].wall)
