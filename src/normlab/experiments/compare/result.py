"""A comparison as types. Everything that is printed, drawn or written comes from these fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.starts import StartRow
from normlab.experiments.runs.records import FinishedRun, Gaps, Numbers
from normlab.experiments.timing import RelativeCost
from normlab.results import Plain, Result
from normlab.schemes.registry import UnknownScheme
from normlab.stats import Paired

MARKS = ("start", "middle", "end")
FEW_TOKENS = 5.0
"""Training tokens for each parameter of the baseline: with fewer, a loss mostly says how the model began."""
Untested = Literal["few_tokens", "nothing_learned", "diverged", "one_seed", "edge", "one_rate"]
"""Why a difference has no p-value and no verdict."""


@dataclass(frozen=True)
class RunRow:
    """One run on one line."""

    cell: str
    scheme: str
    depth: int
    lr: float
    warmup: int
    seed: int
    steps: int
    loss: float | None
    status: str
    grad_norm: float | None
    seconds: float
    validation: float | None
    context_free_loss: float | None
    tokens: int | None
    tokens_per_second: float | None
    clock: str | None
    parameters: int | None
    scheme_parameters: int | None
    flops_per_token: float | None
    activation_bytes: int | None
    peak_bytes: int | None
    device: str | None
    threads: int | None
    commit: str | None
    scheme_flops_per_token: float | None

    @classmethod
    def of(cls, run: FinishedRun) -> RunRow:
        train, model, found = run.config.train, run.config.model, run.summary
        return cls(
            cell=run.name, scheme=Arm.of(run.config).label, depth=model.depth, lr=train.lr, warmup=train.schedule.warmup,
            seed=train.seed, steps=train.steps, loss=run.loss, status=found.status, grad_norm=found.grad_norm,
            seconds=found.seconds, validation=found.validation, context_free_loss=run.floor, tokens=found.tokens,
            tokens_per_second=found.tokens_per_second, clock=found.clock, parameters=found.parameters,
            scheme_parameters=found.scheme_parameters, flops_per_token=found.flops_per_token,
            activation_bytes=found.activation_bytes, peak_bytes=found.peak_bytes, device=found.device,
            threads=found.threads, commit=found.commit, scheme_flops_per_token=scheme_flops(run),
        )  # fmt: skip


def scheme_flops(run: FinishedRun) -> float | None:
    """A training step's arithmetic of the scheme itself, per token; runs record that of branches and head.

    None for a scheme of somebody's own whose module is not imported here.
    """
    if isinstance(run.config.model.scheme, UnknownScheme):
        return None
    return 3 * run.config.model.scheme.mixing_flops(run.config.model.frame())


@dataclass(frozen=True)
class RateRow:
    """One learning rate of the tuning: the mean over the seeds that every rate has; None where one diverged."""

    lr: float
    mean: float | None
    seeds: int
    diverged: int


@dataclass(frozen=True)
class LossCurve:
    """The held-out loss while training."""

    step: list[int]
    loss: Numbers
    decay_start: int


@dataclass(frozen=True)
class LayerMeans:
    """Means over seeds, entry by entry (see `LayerRecord`); the mixing matrix is the first seed's."""

    magnitude: Gaps | None
    output: Gaps | None
    contribution: Gaps | None
    token_cosine: Gaps | None
    block_influence: Gaps | None
    gradient_share: Gaps | None
    skip: Gaps | None
    prune: Gaps | None
    independent: Gaps | None
    mixing: list[Numbers] | None
    effect: Gaps | None = None
    """None for runs of before it was measured (2026-11-19)."""


@dataclass(frozen=True)
class DecayGap:
    """The gap to the baseline through the decay of the learning rate: by seed, (step, loss - the other's)."""

    test: Paired
    seeds: Mapping[int, list[tuple[int, float]]]


@dataclass(frozen=True)
class Averaged:
    """The held-out loss of averaged weights, mean over seeds."""

    ema: float | None
    bema: float | None


@dataclass(frozen=True)
class SchemeRuns:
    """What the runs of one scheme say by themselves."""

    scheme: str
    lr: float
    rates: list[RateRow]
    at_edge: str | None
    lr_fit: float | None
    lost_at_twice_lr: float | None
    losses: Mapping[int, float | None]
    diverged: int
    mean: float | None
    low: float | None
    high: float | None
    averaged: Averaged
    clock: str
    tokens_per_second: float | None
    activation_bytes: int | None
    peak_bytes: float | None
    parameters: int
    scheme_parameters: int | None
    flops_per_token: float | None
    curve: Mapping[int, LossCurve]
    layers: Mapping[str, LayerMeans]
    law: list[float | tuple[float, float] | None]
    is_control: bool = False
    """Is it Pre-Norm with the start of another scheme's authors?"""
    recipe_of: str | None = None
    """The name of the recipe that it runs with, where each has its own."""
    train: float | None = None
    """The training loss over the last tenth of the logged steps, mean over seeds."""
    learned: bool | None = None
    cost: RelativeCost | None = None

    @property
    def name(self) -> str:
        """Of the scheme alone, without its options."""
        return self.scheme.partition("(")[0].partition(" @ ")[0]


@dataclass(frozen=True)
class SchemeRow(SchemeRuns):
    """The same, beside the baseline."""

    difference: Paired = field(default_factory=lambda: Paired(0, None))
    untested: Untested | None = None
    control: str | None = None
    """Pre-Norm with the same start; None where that is the baseline, or there is none."""
    against_control: Paired | None = None
    untested_against_control: Untested | None = None
    without_tuning_seed: float | None = None
    parameters_ratio: float = 1.0
    steps_to_baseline: float | None = None
    reached_baseline: tuple[int, int] = (0, 0)
    loss_at_equal_time: float | None = None
    decay_gap: DecayGap = field(default_factory=lambda: DecayGap(Paired(0, None), {}))


@dataclass(frozen=True)
class SharedSetting:
    """What the compared runs share."""

    depth: int
    dim: int
    heads: int
    task: Mapping[str, Plain]
    steps: int
    tokens: int
    batch: int
    length: int
    warmup: int
    schedule: str
    decay_start: int
    context_free_loss: float | None
    recipe: str = "shared"
    start: Literal["fair", "old"] = "old"
    """`old`: as all sweeps began until 2026-11-19, matrices as each scheme's authors begin them, or with 0.02."""
    optimizer: str = "adamw"
    epochs: float | None = None
    """How often the training text was gone through; None for tasks that draw afresh."""
    architecture: str | None = None
    """Of a backbone; None for models of ours."""

    def bits_per_byte(self, loss: float | None) -> float | None:
        """Of a byte-level text; None for other tasks."""
        is_bytes = self.task.get("task") == "text" and self.task.get("tokens", "bytes") == "bytes"
        return loss / math.log(2) if loss is not None and is_bytes else None

    @property
    def data(self) -> str:
        """The task in words."""
        name = self.task.get("task")
        return str(self.task.get("path") or ("the text that ships with normlab" if name == "text" else name))


@dataclass(frozen=True)
class SettingResult:
    """One setting: its table, what each scheme's numbers support, the answer."""

    setting: SharedSetting
    baseline: str
    schemes: list[SchemeRow]
    statements: Mapping[str, str]
    answer: list[str]
    tokens_per_parameter: float | None = None
    """Training tokens of a run over the baseline's parameters."""
    starts: list[StartRow] = field(default_factory=list)
    own_starts: Mapping[str, str] = field(default_factory=dict)
    """Schemes whose definition asks for another start, with what it asks for."""

    @property
    def is_ordered(self) -> bool:
        """Was there training enough to put the schemes into an order?"""
        return enough_tokens(self.tokens_per_parameter)

    @property
    def reference(self) -> SchemeRow:
        return next(row for row in self.schemes if row.scheme == self.baseline)


def enough_tokens(per_parameter: float | None) -> bool:
    return per_parameter is None or per_parameter >= FEW_TOKENS


@dataclass(frozen=True)
class Comparison(Result):
    """Every setting and every run; `notes` say what the sweeps lack."""

    schema: ClassVar[int] = 2

    notes: list[str]
    settings: list[SettingResult]
    cells: list[RunRow]
    kind: str = "compare"
