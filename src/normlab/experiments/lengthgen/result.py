"""Length generalization as types. Rows say which arm, which weights and which length; a summary is over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.records import LengthScore
from normlab.results import Plain, Result, as_row
from normlab.schemes.names import label
from normlab.theory.complement_theorem import CalibratedLaws

METRICS = ("tv", "auc", "auc_pooled", "auc_sequence", "undefined", "illegal_mass", "loss",
           "attention_entropy", "attention_rms", "gap", "imbalance")  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """What varies from run to run, but for the seed."""

    positions: str
    fix: str
    dim: int
    head_dim: int
    lr: float
    scheme: str

    @classmethod
    def of(cls, run: RunConfig) -> Arm:
        model = run.ours
        fix = "head_norm" if model.head_norm else "none" if model.softmax == "plain" else model.softmax
        return cls(model.positions, fix, model.dim, model.size_of_head, run.train.lr, label(model.scheme))


ARM = tuple(f.name for f in fields(Arm))


@dataclass(frozen=True)
class ScoreRow:
    """One run, scored with one kind of weights at one length."""

    arm: Arm
    seed: int
    weights: str
    length: int
    status: str
    score: LengthScore

    def metric(self, name: str) -> float | None:
        value: float | None = getattr(self.score, name)
        return value

    def to_plain(self) -> dict[str, Plain]:
        where: dict[str, Plain] = {"seed": self.seed, "weights": self.weights, "length": self.length}
        return {**as_row(self.arm), **where, "status": self.status, **{name: self.metric(name) for name in METRICS}}


@dataclass(frozen=True)
class Spread:
    """Median over seeds with the smallest and the largest: of n seeds the range holds the median of the population with
    probability 1 - 2^(1-n), 94 % for five."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class SummaryRow:
    """The same over seeds. `metrics` has what could be measured."""

    arm: Arm
    weights: str
    length: int
    seeds: int
    diverged: int
    metrics: Mapping[str, Spread]

    def to_plain(self) -> dict[str, Plain]:
        found: dict[str, Plain] = {**as_row(self.arm), "weights": self.weights, "length": self.length}
        found |= {"seeds": self.seeds, "diverged": self.diverged}
        for name, spread in self.metrics.items():
            found |= {name: spread.median, f"{name}_low": spread.low, f"{name}_high": spread.high}
        return found


@dataclass(frozen=True)
class AgainstFirst:
    """A scheme against the first one, paired by seed: the median difference of the metric and its interval."""

    arm: Arm
    weights: str
    length: int
    against: str
    metric: str
    difference: float
    low: float
    high: float
    coverage: float
    seeds: int
    verdict: str

    def to_plain(self) -> dict[str, Plain]:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "arm"}
        return {**as_row(self.arm), **own}


@dataclass(frozen=True)
class Calm:
    """How calmly an arm trained, from the logs of its seeds."""

    arm: Arm
    gradient_norm: float | None
    largest: float | None
    loss_deviation: float | None
    stopped_early: int

    def to_plain(self) -> dict[str, Plain]:
        return {
            **as_row(self.arm), "gradient norm": self.gradient_norm, "largest": self.largest,
            "loss deviation, last quarter": self.loss_deviation, "stopped early": self.stopped_early,
        }  # fmt: skip


@dataclass(frozen=True)
class RunNote:
    """How one run was made."""

    status: str
    step: int
    loss: float | None
    seconds: float
    versions: Mapping[str, str]
    commit: str | None
    threads: int | None
    how: str


@dataclass(frozen=True)
class LengthGeneralization(Result):
    """Everything that the report holds; `notes` say what the sweep lacks, `command` made it."""

    schema: ClassVar[int] = 1

    notes: list[str]
    command: str
    config: LengthgenRequest
    rows: list[ScoreRow]
    summary: list[SummaryRow]
    against_first: list[AgainstFirst]
    closed_form: list[CalibratedLaws]
    stability: list[Calm]
    runs: Mapping[str, RunNote]
    kind: str = "lengthgen"
