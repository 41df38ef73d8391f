"""What a run leaves: the records of its log and its summary, as types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from normlab import plugins
from normlab.experiments.measures import LayerMeasures
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import load, read_summary
from normlab.experiments.runs.measured import context_free
from normlab.results import pick
from normlab.store import inside, parse
from normlab.training.loop import WEIGHTS
from normlab.training.record import Log, LogMark, read_log

Numbers = list[float]
Gaps = list[float | None]


@dataclass(frozen=True)
class TrainRecord:
    """A step of training; numbers that were not finite are None."""

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class ValidationRecord:
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class LayerRecord(LayerMeasures):
    """A look into the layers at one step."""

    step: int


@dataclass(frozen=True)
class LengthScore:
    """How the model does at one length (see `scoring`)."""

    loss: float | None = None
    tv: float | None = None
    auc: float | None = None
    auc_pooled: float | None = None
    auc_sequence: float | None = None
    undefined: int | None = None
    prefixes: int | None = None
    illegal_mass: float | None = None
    attention_entropy: float | None = None
    attention_rms: float | None = None
    gap: float | None = None
    imbalance: float | None = None


@dataclass(frozen=True)
class RunSummary:
    """summary.json. Older ones lack some of it, runs on several processes too."""

    status: str
    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    seconds: float = 0.0
    weights: Mapping[str, object] = field(default_factory=dict)
    validation: float | None = None
    context_free_loss: float | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    clock: str | None = None
    parameters: int | None = None
    scheme_parameters: int | None = None
    flops_per_token: float | None = None
    activation_bytes: int | None = None
    peak_bytes: int | None = None
    processes: int | None = None
    seed: int | None = None
    device: str | None = None
    threads: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    conditions: Mapping[str, object] = field(default_factory=dict)
    log: Mapping[str, object] | None = None

    def averaged(self, kind: str) -> float | None:
        """The held-out loss of the averaged weights."""
        found = self.weights.get(kind)
        return found.get("loss") if isinstance(found, Mapping) else None

    def at_length(self, kind: str, length: int) -> LengthScore:
        """A diverged run may have no scores: then nothing is known."""
        found = self.weights.get(kind)
        values = found.get(str(length), {}) if isinstance(found, Mapping) else {}
        return pick(LengthScore, values, source="a run's score")


@dataclass(frozen=True)
class FinishedRun:
    """A run on disk that has ended."""

    folder: Path
    config: RunConfig
    summary: RunSummary

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def lr(self) -> float:
        return self.config.train.lr

    @property
    def loss(self) -> float | None:
        """Held-out loss at the end; None where the run diverged."""
        return self.summary.validation if self.summary.status == "finished" else None

    @cached_property
    def floor(self) -> float | None:
        """What no model that ignores the context can beat on this run's held-out data; None where they are gone."""
        known = self.summary.context_free_loss
        return context_free(self.config) if known is None else known

    @property
    def data(self) -> float | None:
        """Runs that differ here were scored on different data, even if from one path."""
        return None if self.floor is None else round(self.floor, 6)

    @cached_property
    def _log(self) -> list[dict[str, object]]:
        path = inside(self.folder, "log.jsonl")
        if self.summary.log is not None:
            remedy = "restore it, or delete summary.json and the checkpoint to train the run again"
            Log(path).check(parse(LogMark, self.summary.log, path=self.folder / "summary.json", remedy=remedy))
        return read_log(path)

    def _records(self, kind: str) -> list[dict[str, object]]:
        return [record for record in self._log if record.get("kind") == kind]

    def training(self) -> list[TrainRecord]:
        return [pick(TrainRecord, r, source=self._source) for r in self._records("train")]

    def validation(self) -> list[ValidationRecord]:
        return [pick(ValidationRecord, r, source=self._source) for r in self._records("validation")]

    def layers(self) -> list[LayerRecord]:
        return [pick(LayerRecord, r, source=self._source) for r in self._records("layers")]

    @property
    def _source(self) -> str:
        return repr(str(self.folder / "log.jsonl"))


def read_run(folder: str | Path) -> FinishedRun | None:
    """A finished run, or None."""
    found = read_summary(folder)
    if found is None:
        return None
    source = repr(str(Path(folder) / "summary.json"))
    with plugins.records():
        return FinishedRun(Path(folder), load(folder), pick(RunSummary, found, source=source))


__all__ = [
    "WEIGHTS", "FinishedRun", "LayerRecord", "LengthScore", "RunSummary", "TrainRecord", "ValidationRecord", "read_run",
]  # fmt: skip
