"""A cell: one training run, described whole by its config.yaml, finished if and only if its summary.json exists.

    <folder>/config.yaml    what to train
    <folder>/log.jsonl      train, validation and layers records
    <folder>/checkpoint/    the last two
    <folder>/summary.json   written last

`run_cell(folder)` starts it, goes on with it, or returns what is there. Two processes never train the same cell: a lock
makes the second wait, and then find the work done.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn
from typing_extensions import Self

import normlab
from normlab.config import Config
from normlab.errors import ConfigError, InputError
from normlab.experiments import memory
from normlab.experiments.folder import AnyTask, check_data, differences, locked, summary
from normlab.experiments.measures import context_free_loss, layer_measures
from normlab.files import write_text
from normlab.model import Transformer, TransformerConfig
from normlab.model.memory import saved_bytes
from normlab.tasks import Batch, Task, Text, from_dict
from normlab.training import TrainConfig, Trainer

FORMAT = 1
HELD_OUT_SEED = 271828  # the same held-out windows for every scheme, learning rate and seed


class MeasureConfig(Config):
    """What a cell records besides its training loss."""

    what: ClassVar[str] = "measurement"

    validations: int = Field(default=20, ge=1, description="points of the held-out loss curve, the last at the end")
    curve_sequences: int = Field(default=32, ge=1, description="held-out sequences that each point averages")
    sequences: int = Field(default=128, ge=1, description="held-out sequences for the loss at the end")
    layers: tuple[float, ...] = Field(default=(0.0, 0.5, 1.0), description="when to look at the layers: share of steps")
    layer_sequences: int = Field(default=8, ge=1, description="sequences for the measures of layers")
    prune: bool = Field(default=True, description="skip every layer, and remove the least useful ones in turn")

    @classmethod
    def scaled(cls, *, steps: int, batch: int, depth: int) -> Self:
        """Sizes that cost about a quarter of a run, within bounds: a forward pass is a third of a step's work."""
        work = 3 * steps * batch  # forward passes of one sequence
        points = 20 if steps >= 400 else 10
        return cls(
            validations=points,
            curve_sequences=_between(8, 0.08 * work / points, 64),
            sequences=_between(64, 0.04 * work, 256),
            layer_sequences=_between(4, 0.08 * work / (4.5 * depth), 16),
        )

    def passes(self, depth: int) -> float:
        """Forward passes of one sequence that all this takes."""
        looks = len(self.layers) * ((1.5 * depth if self.prune else 0) + 6) * self.layer_sequences
        return looks + self.validations * self.curve_sequences + 3 * self.sequences


def _between(low: int, value: float, high: int) -> int:
    return max(low, min(high, round(value)))


class CellConfig(Config):
    """One run: model, task, training, and what to measure."""

    what: ClassVar[str] = "cell"

    format: int = FORMAT
    model: TransformerConfig
    task: AnyTask = Text()
    train: TrainConfig = TrainConfig()
    measure: MeasureConfig = MeasureConfig()

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: int) -> int:
        if value != FORMAT:
            raise ValueError(f"the run has the format {value}, and this normlab writes {FORMAT}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.model.tie_embeddings and self.task.embedding(self.model.dim) is not None:
            raise ValueError(
                f"model.tie_embeddings: {self.task.name!r} brings its own embedding, so this must be false"
            )
        if self.model.vocab_size < self.task.vocab_size:
            raise ValueError(
                f"model.vocab_size: {self.model.vocab_size} is less than the {self.task.vocab_size} tokens of the task"
            )
        return self

    def check(self) -> None:
        """Draw a sequence of each kind, and raise if there is none, or if it does not fit the model."""
        length, model = self.train.length, self.model
        self.task.sample(1, length, torch.Generator())
        _held_out(self.task, 1, 1, length)
        if model.positions == "learned" and length > model.max_length:
            raise ConfigError(
                f"train.length: {length} is beyond the {model.max_length} learned positions; shorten it, or raise "
                "model.max_length"
            )

    def validation_steps(self) -> set[int]:
        """Evenly spread, and where a final decay begins: the gap between schemes is followed through it."""
        steps, count, schedule = self.train.steps, self.measure.validations, self.train.schedule
        found = {round(steps * k / count) for k in range(1, count + 1)}
        if schedule.kind == "wsd":
            found.add(max(schedule.warmup, round(steps * (1 - schedule.decay))))
        return {step for step in found if step > 0}

    @property
    def held_out_batch(self) -> int:
        return max(self.train.batch, self.measure.layer_sequences)

    @property
    def work(self) -> float:
        """Tokens x layers: what a cell costs, up to a factor that the cells of a sweep share but for the scheme."""
        return float(self.train.steps * self.train.batch * self.train.accumulate * self.train.length * self.model.depth)

    def layer_steps(self) -> set[int]:
        return {round(self.train.steps * share) for share in self.measure.layers}


class CellTrainer(Trainer):
    """The one training loop, with the records of a cell."""

    def __init__(self, model: Transformer, config: CellConfig, folder: Path, *, quiet: bool = True) -> None:
        super().__init__(model, config.task, config.train, folder, evaluate=self._final, quiet=quiet)
        self.cell = config
        self.transformer = model
        shape = (config.held_out_batch, config.train.length)
        self.held_out = _held_out(config.task, config.measure.sequences, *shape)
        self.curve = _held_out(config.task, config.measure.curve_sequences, *shape)
        self._ends: list[float] = []
        self.validated, self.measured = config.validation_steps(), config.layer_steps()
        self._begun: float | None = None
        # On one thread processor time is what a step takes, whoever else uses the machine.
        single = self.device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.process_time if single else time.perf_counter
        self._durations: list[float] = []
        memory.reset_peak(self.device)

    def observe(self) -> None:
        now = self._clock()
        if self._begun is not None:
            self._durations.append(now - self._begun)
        if self.status != "diverged":
            if self.step in self.validated:
                self.log.write({"kind": "validation", "step": self.step, "loss": self.mean_loss(self.curve)})
            if self.step in self.measured:
                found = layer_measures(self.transformer, self._sample(), self._loss, prune=self.cell.measure.prune)
                self.log.write({"kind": "layers", "step": self.step, **found})
        self._begun = self._clock()

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[Batch]) -> float:
        was = self.model.training
        self.model.eval()
        try:
            losses = [self._loss(self.model, part).item() for part in batches]
        finally:
            self.model.train(was)
        sizes = [len(part.tokens) for part in batches]
        return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)

    def _final(self, _model: nn.Module) -> dict[str, Any]:
        self._ends.append(self.mean_loss(self.held_out))
        return {"loss": self._ends[-1]}

    def _sample(self) -> Batch:
        count = self.cell.measure.layer_sequences
        return Batch(*(None if t is None else t[:count] for t in _tensors(self.held_out[0])))  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        """Cost: what a step takes, holds and computes. The median step, since records fall between two steps."""
        train, model = self.cell.train, self.transformer
        tokens = train.batch * train.length * train.accumulate
        step = self.median_step()
        batch = self.task.sample(train.batch, train.length, torch.Generator().manual_seed(0))
        return {
            "validation": self._ends[0],  # of the raw weights, which are scored first
            "context_free_loss": context_free_loss(self.held_out),
            "tokens": tokens * self.step,
            "tokens_per_second": tokens / step if step else None,
            "clock": "processor" if self._clock is time.process_time else "wall",
            "parameters": model.num_parameters(),
            "scheme_parameters": sum(p.numel() for p in model.scheme.parameters()),
            "flops_per_token": model.flops_per_token(train.length, training=True),
            "activation_bytes": saved_bytes(lambda: self._loss(model, self._to_device(batch)), model.parameters()),
            "peak_bytes": memory.peak(self.device),
        }

    def median_step(self) -> float | None:
        return statistics.median(self._durations) if self._durations else None

    def _to_device(self, batch: Batch) -> Batch:
        return Batch(*(None if t is None else t.to(self.device) for t in _tensors(batch)))  # type: ignore[arg-type]


def _tensors(batch: Batch) -> tuple[torch.Tensor | None, ...]:
    return batch.tokens, batch.targets, batch.law


def _held_out(task: Task, count: int, size: int, length: int) -> list[Batch]:
    """The same sequences for every cell of a comparison, in batches of `size`."""
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    exact = task.targets == "exact"
    left, batches = count, []
    while left > 0:
        batches.append(task.held_out().sample(min(size, left), length, generator, law=exact))
        left -= size
    return batches


def context_free(config: CellConfig, found: dict[str, Any]) -> float | None:
    """What no model that ignores the context can beat on this cell's held-out data, from its summary.

    Older summaries lack it: then from the data, or None where they are gone.
    """
    if "context_free_loss" in found:
        return found["context_free_loss"]
    try:
        return _context_free(
            config.task.to_json(), config.measure.sequences, config.held_out_batch, config.train.length
        )
    except InputError:
        return None


@lru_cache(maxsize=64)
def _context_free(task: str, count: int, size: int, length: int) -> float:
    return context_free_loss(_held_out(from_dict(json.loads(task)), count, size, length))


def build(config: CellConfig, *, device: str = "cpu") -> Transformer:
    """The model as it is before the first step. Same seed, same shapes: the same branches where the init agrees."""
    torch.manual_seed(config.train.seed)
    model = Transformer(config.model)
    own = config.task.embedding(config.model.dim)
    if own is not None:
        model.replace_embedding_(own)
    return model.to(device)


def prepare(folder: str | Path, config: CellConfig) -> Path:
    """Make the folder of a cell, or check that it holds this very cell."""
    folder = Path(folder)
    path = folder / "config.yaml"
    if path.exists():
        there = load(folder)
        if there != config:
            found = differences(there.to_dict(), config.to_dict())
            changed = [f"{key} is {was!r} there and {now!r} here" for key, was, now in found]
            raise ConfigError(
                f"{str(folder)!r} holds another run: {'; '.join(changed[:3])}. Give another --out, or delete that folder"
            )
    else:
        write_text(path, config.to_yaml())
    return folder


def load(folder: str | Path) -> CellConfig:
    path = Path(folder) / "config.yaml"
    if not path.exists():
        raise InputError(f"{str(folder)!r} is not the folder of a run: it has no config.yaml")
    try:
        return CellConfig.from_file(path)
    except ConfigError as error:
        raise InputError(
            f"{str(path)!r} is not a run that normlab {normlab.__version__} can read ({error}); if another version wrote it, "
            "use that one, or give another --out"
        ) from None


def run_cell(folder: str | Path, *, threads: int | None = 1, device: str = "cpu", quiet: bool = True) -> dict[str, Any]:
    """Train the cell in this folder to its end, from wherever it stands, and return its summary."""
    folder = Path(folder)
    config = load(folder)
    with locked(folder):
        done = summary(folder)
        if done is not None:
            return done
        check_data(folder.resolve().parent, config.task)
        if threads is not None:
            torch.set_num_threads(threads)
        return CellTrainer(build(config, device=device), config, folder, quiet=quiet).run()
