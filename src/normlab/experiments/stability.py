"""`normlab stability`: learning rate x warm-up, per scheme and depth; two edges found by refinement, not by a dense grid.

One edge is where training stops being stable, the other where it stops learning (see `stability_map` for the criteria).
Each is bracketed by a coarse grid, grown where it must, then bisected in log(rate).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import Self

from normlab.config import Config
from normlab.errors import ConfigError
from normlab.experiments.analysis import label
from normlab.experiments.cell import AnyTask, CellConfig, MeasureConfig
from normlab.experiments.compare import cell_name, parse_scheme, round_3, some_layers
from normlab.experiments.stability_map import analyse, bracket, is_stable, top, verdict
from normlab.experiments.sweep import Cell, Sweep, read_all, read_cells, read_sweep, unfinished
from normlab.model import TransformerConfig
from normlab.tasks import Text
from normlab.training import Schedule, TrainConfig

Key = tuple[str, int, int]  # scheme, depth, steps of warm-up
LOWEST, HIGHEST = 1e-7, 10.0


class StabilityConfig(Config):
    """The map that is asked for."""

    what: ClassVar[str] = "stability map"

    schemes: tuple[str, ...] = ("post_norm", "pre_norm")
    depths: tuple[int, ...] = (12,)
    dim: int = Field(default=64, ge=1)
    heads: int = Field(default=4, ge=1)
    batch: int = Field(default=8, ge=1)
    length: int = Field(default=64, ge=1)
    task: AnyTask = Text()
    steps: int = Field(default=100, ge=20)
    warmups: tuple[int, ...] = (0, 10, 30)
    lrs: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    seeds: int = Field(default=1, ge=1)
    factor: float = Field(default=1.5, gt=1, description="how closely the edge is bracketed: unstable / stable rate")
    edges: Literal["both", "stable", "learning"] = Field(default="both", description="which ones are looked for")
    clip: float | None = Field(default=1.0, gt=0)

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("give at least one scheme")
        for name in names:
            parse_scheme(name)
        return names

    @field_validator("depths")
    @classmethod
    def _layers(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        return some_layers(depths)

    @field_validator("warmups")
    @classmethod
    def _some(cls, warmups: tuple[int, ...]) -> tuple[int, ...]:
        if not warmups:
            raise ValueError("give at least one length of warm-up; 0 is none")
        return warmups

    @field_validator("lrs")
    @classmethod
    def _grid(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(rates)) < 2 or any(not rate > 0 for rate in rates):
            raise ValueError(f"the first grid needs two or more different positive rates, but got {list(rates)}")
        return tuple(sorted({round_3(rate) for rate in rates}))

    def check(self) -> Self:
        for warmup in self.warmups:
            if not 0 <= warmup <= self.steps:
                raise ConfigError(f"warmups: {warmup} steps of warm-up do not fit into {self.steps} steps")
        return self

    def cell(self, key: Key, lr: float, seed: int) -> CellConfig:
        scheme, depth, warmup = key
        return CellConfig(
            model=TransformerConfig(
                vocab_size=self.task.vocab_size, dim=self.dim, depth=depth, heads=self.heads, scheme=parse_scheme(scheme),
                tie_embeddings=self.task.embedding(self.dim) is None,
            ),
            task=self.task,
            train=TrainConfig(
                steps=self.steps, batch=self.batch, length=self.length, seed=seed, lr=lr, clip=self.clip, log_every=1,
                schedule=Schedule(kind="constant", warmup=warmup), checkpoint_every=max(20, self.steps // 2),
            ),
            measure=MeasureConfig(validations=1, curve_sequences=1, sequences=32, layers=(), prune=False),
        )  # fmt: skip

    def points(self) -> list[Key]:
        return [(scheme, depth, warmup) for depth in self.depths for scheme in self.schemes for warmup in self.warmups]


# -- the search -------------------------------------------------------------------------------------------------------
def next_rate(stable: Mapping[float, bool], factor: float) -> float | None:
    """The next rate to try, given which are stable; None when the edge is bracketed within `factor`."""
    rates = sorted(stable)
    below, above = bracket(stable)
    if below is None:
        lower = round_3(rates[0] / 10)
        return lower if lower >= LOWEST else None
    if above is None:
        higher = round_3(rates[-1] * 10)
        return higher if higher <= HIGHEST else None
    return _between(below, above, factor)


def next_learning_rate(learned: Mapping[float, bool], factor: float) -> float | None:
    """The same for the highest rate that learns; None too where none does, or all that were tried do."""
    below, above = top(learned)
    return None if below is None or above is None else _between(below, above, factor)


def _between(below: float, above: float, factor: float) -> float | None:
    if above / below <= factor * (1 + 1e-9):
        return None
    middle = round_3(math.sqrt(below * above))
    return middle if below < middle < above else None


def stability(config: StabilityConfig, sweep: Sweep) -> dict[str, Any]:
    """Run the map, or what is missing of it, and return it."""
    config.check()
    for key in config.points():
        config.cell(key, config.lrs[0], 0)  # what cannot be built leaves no sweep behind
    grows = ("schemes", "depths", "warmups", "lrs", "seeds")
    sweep.settle("stability", config.to_dict(), dict, grows=grows, task=config.task)
    tried: dict[Key, list[float]] = {key: list(config.lrs) for key in config.points()}
    round_ = 0
    while True:
        wanted = {
            f"{cell_name(key[0], key[1], lr, seed)}-w{key[2]}": (key, lr, config.cell(key, lr, seed))
            for key, rates in tried.items()
            for lr in rates
            for seed in range(config.seeds)
        }
        cells = sweep.run({name: cell for name, (_, _, cell) in wanted.items()}, what=f"round {round_ + 1}")
        sweep.check()
        more = next_rates(config, [(wanted[cell.name][0], cell) for cell in cells])
        if not any(more.values()):
            return from_folders([sweep.folder])
        for key, rates in more.items():
            tried[key] += rates
        round_ += 1


def next_rates(config: StabilityConfig, cells: Iterable[tuple[Key, Cell]]) -> dict[Key, list[float]]:
    """What to try next at each point of the map; nothing where both edges are bracketed."""
    stable: dict[Key, dict[float, bool]] = defaultdict(dict)
    learned: dict[Key, dict[float, bool]] = defaultdict(dict)
    for key, cell in cells:
        lr, word = cell.config.train.lr, verdict(cell)
        stable[key][lr] = stable[key].get(lr, True) and is_stable(word)
        learned[key][lr] = learned[key].get(lr, True) and word == "stable"
    found: dict[Key, set[float | None]] = {key: set() for key in stable}
    for key, rates in found.items():
        if config.edges != "learning":
            rates.add(next_rate(stable[key], config.factor))
        if config.edges != "stable":
            rates.add(next_learning_rate(learned[key], config.factor))
    return {key: sorted(rate for rate in rates if rate is not None) for key, rates in found.items()}


def from_folders(folders: Sequence[Path]) -> dict[str, Any]:
    """The map of what is finished in these folders, and what they lack."""
    return analyse(read_all(folders), notes=[note for folder in folders for note in _notes(folder)])


def _notes(folder: Path) -> list[str]:
    config = StabilityConfig.from_dict(read_sweep(folder)["request"])
    notes = unfinished(folder, least=len(config.points()) * len(config.lrs) * config.seeds)
    keys = {(label(parse_scheme(key[0])), *key[1:]): key for key in config.points()}
    cells = [(keys[key], cell) for cell in read_cells(folder) if (key := _key(cell)) in keys]
    open_ = sum(bool(rates) for rates in next_rates(config, cells).values())
    if not notes and open_:
        notes.append(f"{str(folder)!r} is not finished: the edges of {open_} lines are not bracketed as closely as asked; "
                     "run its command again to go on.")  # fmt: skip
    return notes


def _key(cell: Cell) -> Key:
    return label(cell.config.model.scheme), cell.config.model.depth, cell.config.train.schedule.warmup


__all__ = ["StabilityConfig", "analyse", "next_learning_rate", "next_rate", "stability"]
