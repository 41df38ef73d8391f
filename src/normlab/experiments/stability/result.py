"""A stability map as types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from normlab.experiments.compare.result import RunRow
from normlab.experiments.runs.records import FinishedRun, Numbers
from normlab.results import Result
from normlab.stats import Paired

Bracket = tuple[float | None, float | None]


@dataclass(frozen=True)
class JudgedRun(RunRow):
    """A run, and what it is: stable, flat, nan, above or spike."""

    verdict: str
    gradient_spikes: int

    @classmethod
    def judged(cls, run: FinishedRun, *, verdict: str, gradient_spikes: int) -> JudgedRun:
        own = RunRow.of(run)
        known = {f.name: getattr(own, f.name) for f in fields(own)}
        return cls(**known, verdict=verdict, gradient_spikes=gradient_spikes)

    @property
    def stable(self) -> bool:
        return self.verdict in ("stable", "flat")

    @property
    def learned(self) -> bool:
        return self.verdict == "stable"


@dataclass(frozen=True)
class Point:
    """One rate of one warm-up, over its seeds."""

    lr: float
    stable: bool
    learned: bool
    unstable_seeds: int
    seeds: int
    loss: float | None
    verdicts: list[str]
    gradient_spikes: float


@dataclass(frozen=True)
class Edges:
    """Where something ends, seed by seed.

    `per_seed`: the lower end of each seed's bracket, None where it is open: the edge was not found. `none`: the seeds
    with no good rate at all; their edge lies below the lowest rate that was tried. `octaves`: the widest bracket.
    """

    per_seed: Mapping[int, float | None]
    none: list[int]
    octaves: float

    def bounded(self, lowest: float) -> dict[int, float | None]:
        """A seed without any good rate counts as if its edge were the lowest rate tried, which understates what is lost."""
        return {seed: lowest if seed in self.none else value for seed, value in self.per_seed.items()}


@dataclass(frozen=True)
class WarmupLine:
    """One warm-up: its points by rate, and the edges, of all seeds together and of each."""

    warmup: int
    edge: float | None
    unstable_from: float | None
    points: list[Point]
    learns_up_to: float | None
    best_loss: float | None
    lowest: float
    stable_edges: Edges
    learning_edges: Edges
    best_per_seed: Mapping[int, float | None]
    usable: tuple[float, float] | None = None


@dataclass(frozen=True)
class Region:
    """One scheme at one depth. `map` tells merged maps apart."""

    scheme: str
    depth: int
    map: str
    steps: int
    warmups: list[WarmupLine]
    widest: int
    context_free_loss: float | None
    learned: bool

    @property
    def widest_line(self) -> WarmupLine:
        return next(line for line in self.warmups if line.warmup == self.widest)

    @property
    def name(self) -> str:
        """The scheme without its options."""
        return self.scheme.partition("(")[0]

    @property
    def which(self) -> str:
        return f" ({self.map})" if self.map else ""


@dataclass(frozen=True)
class ClaimOverSeeds:
    """A claim about warm-up: a number over seeds, and whether it confirms what is claimed."""

    claim: str
    number: str
    values: Numbers
    verdict: str
    reason: str
    n: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    significant: bool

    @classmethod
    def of(cls, claim: str, number: str, values: Numbers, *, test: Paired, verdict: str, reason: str) -> ClaimOverSeeds:
        return cls(
            claim, number, values, verdict, reason, test.n, test.mean, test.low, test.high, test.p, test.adjusted,
            test.significant,
        )  # fmt: skip


@dataclass(frozen=True)
class StabilityMap(Result):
    """Every region, what it says, the claims about warm-up, and every run. `notes` say what the sweeps lack."""

    schema: ClassVar[int] = 2

    notes: list[str]
    criteria: Mapping[str, str]
    regions: list[Region]
    claims: list[ClaimOverSeeds]
    statements: list[str]
    cells: list[JudgedRun]
    kind: str = "stability"
