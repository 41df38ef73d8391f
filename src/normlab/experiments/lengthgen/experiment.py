"""Length generalization: schemes x fixes x seeds on one task, each scored at every length with raw, EMA and BEMA weights.

After "Post-Norm can Resharpen Attention" (arXiv 2510.08341). Its code and most of its settings are not public: the
optimizer's numbers below are ours.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from normlab.config import Config
from normlab.errors import ConfigError, canonical, unknown
from normlab.experiments.run import AnyTask, RunConfig
from normlab.model import TransformerConfig
from normlab.schemes import lookup
from normlab.tasks import SetComplement, Task
from normlab.theory import set_complement as theory
from normlab.training import Schedule, TrainConfig
from normlab.training.loop import WEIGHTS, AverageConfig
from normlab.training.record import read_log

FIXES: dict[str, dict[str, Any]] = {
    "none": {},
    "ssmax": {"softmax": "ssmax"},
    "adaptive": {"softmax": "adaptive"},
    "head_norm": {"head_norm": True},
}
FOUR = ("pre_norm", "post_norm", "peri_norm", "peri_init_norm")
METRICS = ("tv", "auc", "auc_pooled", "undefined", "illegal_mass", "loss", "attention_entropy", "attention_rms", "gap",
           "imbalance")  # fmt: skip


class Lengthgen(Config):
    """The experiment; `cells()` are its runs."""

    what: ClassVar[str] = "length generalization experiment"

    task: AnyTask
    test_task: AnyTask | None = Field(default=None, description="score on this task instead, for example deeper Dyck")
    preset: Literal["minimal", "two_layer"] = "minimal"
    schemes: tuple[str, ...] = Field(default=FOUR, strict=False)  # not strict: a YAML list may stand for a tuple
    fixes: tuple[str, ...] = Field(default=("none",), strict=False)
    positions: tuple[Literal["nope", "rope", "learned", "sinusoidal"], ...] = Field(default=("nope",), strict=False)
    seeds: int = Field(default=5, ge=1)
    first_seed: int = Field(default=0, ge=0)
    train_length: int = Field(default=8, ge=1)
    test_lengths: tuple[int, ...] = Field(min_length=1, strict=False)
    test_count: int = Field(default=256, ge=1)
    steps: int = Field(default=2000, ge=1)
    batch: int = Field(default=64, ge=1)
    lrs: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(3e-3,), min_length=1, strict=False)
    weight_decay: float = Field(default=0.01, ge=0)
    dims: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), strict=False, description="widths d; empty: v - 1 (minimal), 64 (two_layer)"
    )
    head_dims: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), strict=False, description="widths of a head's values (d_v) and keys; empty: d / heads"
    )
    depth: int | None = Field(default=None, ge=1, description="layers; null: 1 (minimal), 2 (two_layer)")
    max_length: int | None = Field(default=None, ge=1, description="learned positions; null: as long as needed")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.schemes:
            lookup(name)
        for fix in self.fixes:
            if fix not in FIXES:
                raise ConfigError(unknown("fix", fix, FIXES))
        if self.preset == "minimal" and self.positions != ("nope",):
            raise ConfigError("the minimal preset has no positions by definition; take --preset two-layer for others")
        if self.preset == "minimal" and self.depth not in (None, 1):
            raise ConfigError(
                f"the minimal preset has one layer by definition, but {self.depth} were asked; take --preset two-layer"
            )
        return self

    def cells(self) -> dict[str, RunConfig]:
        """Run name -> configuration."""
        found = {}
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        swept = itertools.product(self.positions, self.fixes, self.dims or (None,), self.head_dims or (None,), self.lrs)
        for positions, fix, dim, head_dim, lr in swept:
            # A setting is part of the name where it varies, so that a plain run keeps its plain name.
            tags = [
                *([fix] if fix != "none" else []),
                *([f"d{dim}"] if len(self.dims) > 1 else []),
                *([f"dv{head_dim}"] if len(self.head_dims) > 1 else []),
                *([f"lr{lr:g}"] if len(self.lrs) > 1 else []),
            ]
            for scheme, seed in itertools.product(self.schemes, seeds):
                found["-".join([canonical(scheme), *tags, positions, f"seed{seed}"])] = RunConfig(
                    model=self._model(scheme, fix, positions, dim, head_dim),
                    task=self.task,
                    test_task=self.test_task,
                    train=self._train(seed, lr),
                    test_lengths=self.test_lengths,
                    test_count=self.test_count,
                )
        return found

    def _model(
        self, scheme: str, fix: str, positions: str, width: int | None, head_dim: int | None
    ) -> TransformerConfig:
        v = self.task.vocab_size
        minimal = self.preset == "minimal"
        dim = width or (max(v - 1, 2) if minimal else 64)
        return TransformerConfig.from_dict(
            {
                "vocab_size": v,
                "dim": dim,
                "depth": self.depth or (1 if minimal else 2),
                "heads": 1 if minimal else 4,
                "head_dim": head_dim,
                "ffn": "none" if minimal else "gelu",
                "scheme": canonical(scheme),
                "positions": positions,
                "max_length": self.max_length or max(*self.test_lengths, self.train_length),
                "tie_embeddings": False,
                "init_std": dim**-0.5,
                **FIXES[fix],
            }
        )

    def _train(self, seed: int, lr: float) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch=self.batch,
            length=self.train_length,
            seed=seed,
            lr=lr,
            weight_decay=self.weight_decay,
            schedule=Schedule(kind="linear", warmup=min(max(self.steps // 50, 1), 1000)),
            average=AverageConfig(every=max(self.steps // 2000, 1)),
            log_every=max(self.steps // 200, 1),
            checkpoint_every=max(self.steps // 10, 1),
        )


def default_lengths(task: Task, train_length: int) -> tuple[int, ...]:
    """The training length, its half, and multiples up to what the task has."""
    longest = task.longest
    wanted = {max(train_length // 2, 1), *(train_length * k for k in (1, 2, 4))}
    if isinstance(task, SetComplement) and longest is not None:
        wanted = {1, 2, train_length // 2 or 1, train_length, *(round(longest * k / 4) for k in (1, 2, 3)), longest}
    return tuple(sorted(n for n in wanted if n >= 1 and (longest is None or n <= longest)))


def rows(config: Lengthgen, summaries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each scheme, fix, positions, seed, weights and length."""
    found = []
    for name, cell in config.cells().items():
        summary = summaries[name]
        for weights in WEIGHTS:
            scores = summary["weights"].get(weights, {})
            found += [
                {
                    **_setting(cell),
                    "seed": cell.train.seed,
                    "weights": weights,
                    "length": length,
                    "status": summary["status"],
                    **{key: value for key, value in scores.get(str(length), {}).items() if key in METRICS},
                }
                for length in config.test_lengths
            ]
    return found


SETTING = ("positions", "fix", "dim", "head_dim", "lr", "scheme")
KEYS = (*SETTING, "weights", "length")


def _setting(cell: RunConfig) -> dict[str, Any]:
    """What varies from cell to cell, but for the seed."""
    model = cell.model
    fix = "head_norm" if model.head_norm else "none" if model.softmax == "plain" else model.softmax
    values = (model.positions, fix, model.dim, model.size_of_head, cell.train.lr, model.scheme.name)
    return dict(zip(SETTING, values, strict=True))


def summarise(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median over seeds with the smallest and the largest: of n seeds the range holds the median of the population with
    probability 1 - 2^(1-n), 94 % for five."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault(tuple(row.get(key) for key in KEYS), []).append(row)
    result = []
    for key, members in groups.items():
        line = {**dict(zip(KEYS, key, strict=True)), "seeds": len(members)}
        line["diverged"] = sum(row["status"] == "diverged" for row in members)
        for metric in METRICS:
            values = [row[metric] for row in members if row.get(metric) is not None]
            if values:
                line |= {metric: statistics.median(values), f"{metric}_low": min(values), f"{metric}_high": max(values)}
        result.append(line)
    return result


def stability(config: Lengthgen, folder: Path) -> list[dict[str, Any]]:
    """How calmly each scheme trained, from the logs: gradient norms, the loss's spread at the end, early stops."""
    groups: dict[tuple[Any, ...], list[list[dict[str, Any]]]] = {}
    for name, cell in config.cells().items():
        key = tuple(_setting(cell).values())
        groups.setdefault(key, []).append(read_log(folder / name / "log.jsonl", "train"))
    found = []
    for key, logs in groups.items():
        norms = [r["grad_norm"] for log in logs for r in log if r["grad_norm"] is not None]
        ends = [[r["loss"] for r in log[-max(len(log) // 4, 2) :] if r["loss"] is not None] for log in logs]
        spread = [statistics.stdev(losses) for losses in ends if len(losses) > 1]
        found.append(
            {
                **dict(zip(SETTING, key, strict=True)),
                "gradient norm": statistics.median(norms) if norms else None,
                "largest": max(norms) if norms else None,
                "loss deviation, last quarter": statistics.median(spread) if spread else None,
                "stopped early": sum(log[-1]["step"] < config.steps for log in logs if log),
            }
        )
    return found


def closed_form(config: Lengthgen, summary: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """The laws with and without a norm, brought to the first scheme's total variation at the training length."""
    task = config.task
    if not isinstance(task, SetComplement) or task.replacement:
        return []
    at = config.train_length if config.train_length in config.test_lengths else min(config.test_lengths)
    here = [r for r in summary if r["length"] == at and r["weights"] == "raw" and r.get("tv") is not None]
    if not here or not 0 < here[0]["tv"] < at / task.vocab:
        return []
    return theory.calibrated(task.vocab, here[0]["tv"], at)
