"""The fair comparison: same data and seeds for all, the learning rate tuned for each scheme, then more seeds at it.

    1  every scheme x every rate, with the first seed; where the best rate is the last of the grid, the grid grows
    2  the best rate of each scheme with the other seeds

The first seed's run at the best rate is both the end of the tuning and one of the seeds; the sentences give the
difference without it too.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from normlab.config import Config, load_yaml
from normlab.errors import ConfigError
from normlab.experiments import timing
from normlab.experiments.analysis import analyse, best_rate, label, pick_baseline
from normlab.experiments.cell import AnyTask, CellConfig, CellTrainer, MeasureConfig, build
from normlab.experiments.sweep import Cell, Sweep, read_all, read_cells, read_sweep, unfinished
from normlab.model import TransformerConfig
from normlab.schemes import SchemeConfig, lookup
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig
from normlab.training.loop import AverageConfig

DEFAULT_SCHEMES = ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res")
DEFAULT_BUDGET = "10m"
GROWS = ("schemes", "depths", "seeds")  # what a comparison that is there can be asked to do more of
PARALLEL = 0.85  # two cells on two cores share caches and memory: each runs a little slower than alone
START = 4.0  # seconds until a new worker trains: importing torch takes three of them
CELL = 0.5  # seconds to build a cell and to write its checkpoints
FORWARD = 0.45  # of a step's time: the forward pass, on the smaller batches of what is measured
REPEATS = 3  # steps of each scheme that are timed, after one that is not


class CompareConfig(Config):
    """What is compared, and how long for. `tokens` is per run; `budget` is the time of the whole comparison."""

    what: ClassVar[str] = "comparison"

    schemes: tuple[str, ...] = DEFAULT_SCHEMES
    baseline: str | None = Field(default=None, description="null: pre_norm where it is compared, else the first")
    depths: tuple[int, ...] = (12,)
    dim: int = Field(default=64, ge=1)
    heads: int = Field(default=4, ge=1)
    batch: int = Field(default=16, ge=1)
    length: int = Field(default=64, ge=1)
    task: AnyTask = Text()
    tokens: int | None = Field(default=None, ge=1)
    budget: str | None = Field(default=None, description="for example 90s, 10m, 2h; null without tokens: 10m")
    seeds: int = Field(default=2, ge=1)
    lrs: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    extend: int = Field(default=1, ge=0, description="how often the grid of rates may grow where its last is the best")
    warmup: float = Field(default=0.1, ge=0, le=1, description="share of the steps")
    decay: float = Field(default=0.3, gt=0, le=1, description="share of the steps")
    measure: MeasureConfig | None = Field(default=None, description="null: sizes that suit the length of the runs")

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("give at least one scheme")
        found = [label(parse_scheme(name)) for name in names]  # raises for an unknown name
        if len(set(found)) < len(found):
            raise ValueError(f"a scheme is given twice: {', '.join(found)}")
        return names

    @field_validator("depths")
    @classmethod
    def _layers(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        return some_layers(depths)

    @field_validator("lrs")
    @classmethod
    def _positive(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if not rates or any(not rate > 0 for rate in rates):
            raise ValueError(f"learning rates are positive numbers, but got {list(rates)}")
        return tuple(sorted({round_3(rate) for rate in rates}))

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.tokens is not None and self.budget is not None:
            raise ValueError("give either tokens (of each run) or a time budget (of the whole comparison), not both")
        if self.baseline is not None:
            pick_baseline([label(parse_scheme(name)) for name in self.schemes], self.baseline)
        return self

    def phases(self) -> list[int]:
        """How many cells each scheme and depth has at most in what is run one after the other (see `compare`)."""
        wider = [1] * self.extend if len(self.lrs) > 1 else []
        return [len(self.lrs), *wider, self.seeds - 1]

    def runs(self) -> int:
        """How many cells there are at most."""
        return len(self.schemes) * len(self.depths) * sum(self.phases())

    def least_runs(self) -> int:
        return len(self.schemes) * len(self.depths) * (len(self.lrs) + self.seeds - 1)

    def cell(self, scheme: str, depth: int, *, lr: float, seed: int, steps: int) -> CellConfig:
        # Shares of so few steps round to nothing: one step of warm-up is the least.
        warmup = min(steps, max(1, round(self.warmup * steps))) if self.warmup > 0 else 0
        return CellConfig(
            model=TransformerConfig(
                vocab_size=self.task.vocab_size,
                dim=self.dim,
                depth=depth,
                heads=self.heads,
                scheme=parse_scheme(scheme),
                tie_embeddings=self.task.embedding(self.dim) is None,
            ),
            task=self.task,
            train=TrainConfig(
                steps=steps,
                batch=self.batch,
                length=self.length,
                seed=seed,
                lr=lr,
                schedule=Schedule(kind="wsd", warmup=warmup, decay=self.decay),
                average=AverageConfig(every=max(1, min(10, steps // 50))),
                log_every=max(1, steps // 200),
                checkpoint_every=max(20, steps // 5),
            ),
            measure=self.measure or MeasureConfig.scaled(steps=steps, batch=self.batch, depth=depth),
        )


def some_layers(depths: tuple[int, ...]) -> tuple[int, ...]:
    if not depths or min(depths) < 1:
        raise ValueError(f"give one or more numbers of layers, each at least 1, but got {list(depths)}")
    return depths


def parse_scheme(text: str) -> SchemeConfig:
    """`block_attn_res` or, with options, `block_attn_res(blocks=4, inner=peri_norm)`."""
    match = re.fullmatch(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        raise ConfigError(f"a scheme is written name or name(option=value, ...); {text!r} is neither")
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        key, sign, value = item.partition("=")
        if not sign:
            raise ConfigError(f"an option of a scheme is written key=value, for example blocks=4; {item!r} is not")
        options[key.strip()] = load_yaml(value, source=f"the value of {key.strip()!r}")
    config = lookup(match[1])
    return config.from_dict({"name": config.model_fields["name"].default, **options})


def seconds(text: str) -> float:
    """90, 90s, 10m, 1.5h"""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None:
        raise ConfigError(f"a time is written like 90s, 10m or 2h; {text!r} is not")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def compare(config: CompareConfig, sweep: Sweep) -> dict[str, Any]:
    """Run what is missing and return the comparison (see `analyse`). Raises SweepError where cells could not run."""
    for scheme, depth in itertools.product(config.schemes, config.depths):
        config.cell(scheme, depth, lr=config.lrs[0], seed=0, steps=10)  # what cannot be built leaves no sweep behind
    request = config.to_dict()
    device = getattr(sweep.executor, "device", "cpu")

    def decide() -> dict[str, int]:
        return {"steps": settle_steps(config, workers=_workers(sweep), device=device)}

    settled = sweep.settle("compare", request, decide, grows=GROWS, task=config.task)
    steps = settled["steps"]
    for round_ in range(config.extend + 1):
        grid = dict(_grids(config, sweep, round_))
        wanted = {
            cell_name(s, d, lr, 0): config.cell(s, d, lr=lr, seed=0, steps=steps)
            for (s, d), rates in grid.items()
            for lr in rates
        }
        if wanted:
            sweep.run(wanted, what="tuning" if round_ == 0 else "tuning, wider")
    chosen = {key: best_rate(found)[0] for key, found in _by_scheme(config, sweep).items()}
    rest = {
        cell_name(s, d, lr, seed): config.cell(s, d, lr=lr, seed=seed, steps=steps)
        for seed in range(1, config.seeds)
        for (s, d), lr in chosen.items()
    }
    sweep.run(rest, what="seeds")
    sweep.check()
    timed = [
        (label(parse_scheme(s)), config.cell(s, d, lr=config.lrs[0], seed=0, steps=steps)) for s, d in sorted(chosen)
    ]
    timing.measure(sweep.folder, timed, device=device, quiet=sweep.quiet)
    return from_folders([sweep.folder], baseline=config.baseline)


def from_folders(folders: Sequence[Path], *, baseline: str | None = None) -> dict[str, Any]:
    """The comparison of what is finished in these folders, and what they lack."""
    notes = [note for folder in folders for note in _notes(folder)]
    return analyse(read_all(folders), baseline=baseline, costs=timing.read_costs(folders), notes=notes)


def _notes(folder: Path) -> list[str]:
    config = CompareConfig.from_dict(read_sweep(folder)["request"])
    return unfinished(folder, least=config.least_runs())


def cell_name(scheme: str, depth: int, lr: float, seed: int) -> str:
    return f"{re.sub(r'[^a-z0-9_=.]+', '-', label(parse_scheme(scheme))).strip('-')}-l{depth}-lr{lr:.3g}-s{seed}"


def _grids(config: CompareConfig, sweep: Sweep, round_: int) -> Iterator[tuple[tuple[str, int], list[float]]]:
    """The rates to run: the grid first, then one more on the side where the best lies at the end of it."""
    if round_ == 0:
        for depth in config.depths:
            for scheme in config.schemes:
                yield (scheme, depth), list(config.lrs)
        return
    for (scheme, depth), cells in _by_scheme(config, sweep).items():
        best, table = best_rate(cells)
        rates = [row["lr"] for row in table]
        if len(rates) < 2 or len(rates) - len(config.lrs) >= round_:  # grown this often already, in an earlier run
            continue
        if best == rates[-1]:
            yield (scheme, depth), [round_3(best * rates[-1] / rates[-2])]
        elif best == rates[0]:
            yield (scheme, depth), [round_3(best * rates[0] / rates[1])]


def round_3(value: float) -> float:
    """Three digits, so that names and values agree."""
    return float(f"{value:.3g}")


def _by_scheme(config: CompareConfig, sweep: Sweep) -> dict[tuple[str, int], list[Cell]]:
    """The finished tuning cells (first seed) of each scheme and depth; what failed is missing."""
    names = {label(parse_scheme(name)): name for name in config.schemes}
    found: dict[tuple[str, int], list[Cell]] = {}
    for cell in read_cells(sweep.folder):
        if cell.config.train.seed == 0:
            key = (names[label(cell.config.model.scheme)], cell.config.model.depth)
            found.setdefault(key, []).append(cell)
    return found


# -- how many steps ---------------------------------------------------------------------------------------------------
def _workers(sweep: Sweep) -> int:
    """Cells that really run at a time."""
    executor = sweep.executor
    return max(1, getattr(executor, "at_once", getattr(executor, "workers", 1)))


def settle_steps(config: CompareConfig, *, workers: int, device: str = "cpu") -> int:
    per_step = config.batch * config.length
    if config.tokens is not None:
        if config.tokens < per_step:
            raise ConfigError(
                f"tokens: {config.tokens} is less than one step of {config.batch} x {config.length} = {per_step} tokens"
            )
        return config.tokens // per_step
    budget = config.budget or DEFAULT_BUDGET
    available, times = seconds(budget), time_steps(config, device)

    def needed(steps: int) -> float:
        return total_seconds(config, times, steps, workers=workers)

    if needed(1) > available:
        raise ConfigError(
            f"budget: {budget} is too small for one step of each of the {config.runs()} runs and what is measured in them, "
            f"which takes about {math.ceil(needed(1))} s here; give more time, or fewer schemes, rates or seeds, or a "
            "smaller model"
        )
    low, high = 1, 2
    while needed(high) <= available:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= available else (low, middle)
    return low


def total_seconds(
    config: CompareConfig, times: Mapping[tuple[str, int], float], steps: int, *, workers: int = 1
) -> float:
    """From the timing of steps to the last cell: phases one after the other, each on `workers` processes.

    A cell takes its steps, and the forward passes of what is measured.
    """
    alone = []
    for (_, depth), one in times.items():
        measure = config.measure or MeasureConfig.scaled(steps=steps, batch=config.batch, depth=depth)
        alone.append(CELL + one * (steps + FORWARD * measure.passes(depth) / config.batch))
    steps_timed = REPEATS + 1 + 2 * (timing.ROUNDS + 1)  # before the runs and, beside the reference's, after them
    total, started = steps_timed * sum(times.values()), 0
    for count in config.phases():
        cells = [one for one in alone for _ in range(count)]
        used = min(workers, len(cells))
        total += _makespan(cells, used, started=started)
        started = max(started, used)
    return total


def _makespan(cells: Sequence[float], workers: int, *, started: int) -> float:
    """When the last cell ends, if each process takes the next one in line, and the first ones a worker that is there."""
    if not cells:
        return 0.0
    slower = PARALLEL if workers > 1 else 1.0
    ends = [one / slower + (0.0 if i < started else START) for i, one in enumerate(cells[:workers])]
    heapq.heapify(ends)
    for one in cells[workers:]:
        heapq.heapreplace(ends, ends[0] + one / slower)
    return max(ends)


def time_steps(config: CompareConfig, device: str = "cpu") -> dict[tuple[str, int], float]:
    """Seconds a step of each (scheme, depth), from a few steps on the device of the sweep, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            (scheme, depth): _time_step(config.cell(scheme, depth, lr=1e-4, seed=0, steps=10), device)
            for depth in config.depths
            for scheme in config.schemes
        }
    finally:
        torch.set_num_threads(threads)


def _time_step(cell: CellConfig, device: str) -> float:
    trainer = CellTrainer(build(cell, device=device), cell, Path("."))  # nothing is written: `run` is not called
    times = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        trainer._one()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])
