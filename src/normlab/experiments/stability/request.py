"""The map that is asked for."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator
from typing_extensions import Self

from normlab.errors import ConfigError
from normlab.experiments.request import option
from normlab.experiments.shapes import GridRequest, round_3

Line = tuple[str, int, int]  # scheme, depth, steps of warm-up


class StabilityRequest(GridRequest):
    """Learning rate x warm-up, for each scheme and depth."""

    what: ClassVar[str] = "stability map"
    kind: ClassVar[str] = "stability"
    grows: ClassVar[tuple[str, ...]] = ("schemes", "depths", "warmups", "lrs", "seeds")

    schemes: tuple[str, ...] = option(
        ("post_norm", "pre_norm"), "Names with commas, options in brackets: deep_norm(layers=24); a family; or all."
    )
    batch: int = option(8, "Sequences a step.", ge=1)
    steps: int = option(100, "Steps of each run.", ge=20)
    warmups: tuple[int, ...] = option((0, 10, 30), "Steps of warm-up, with commas.")
    lrs: tuple[float, ...] = option((1e-3, 1e-2, 1e-1), "The first, coarse grid of learning rates.")
    factor: float = option(1.5, "How closely the edges are bracketed: unstable / stable rate.", gt=1)
    edges: Literal["both", "stable", "learning"] = option("both", "Which edges are looked for: both, stable, learning.")
    seeds: int = option(1, "Seeds of each point; it is stable if all are.", ge=1)
    clip: float | None = option(1.0, "Gradient clipping; 0 or none: without.", gt=0)

    @field_validator("clip", mode="before")
    @classmethod
    def _no_clipping(cls, clip: object) -> object:
        return None if clip == 0 else clip

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

    def lines(self) -> list[Line]:
        return [(scheme, depth, warmup) for depth in self.depths for scheme in self.schemes for warmup in self.warmups]
