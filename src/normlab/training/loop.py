"""One training loop for every task and scheme: resumable bit for bit, with divergence as an outcome, not a crash.

On disk, in `runs/<experiment>/<run>/`: log.jsonl, checkpoint/, and summary.json, which is written last. Data come from
a generator whose state is part of the checkpoint; the log is cut back to the checkpoint when a killed run goes on, so
that a resumed log equals an uninterrupted one.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from normlab.config import Config
from normlab.files import write_json
from normlab.report.terminal import finite, progress
from normlab.store import Heartbeat, inside, seal
from normlab.tasks import IGNORE, Batch, Task
from normlab.training import checkpoint, optim
from normlab.training.averaging import BEMA
from normlab.training.optim import Schedule
from normlab.training.record import Conditions, Log, LogMark, provenance

Status = Literal["running", "diverged", "finished"]
WEIGHTS = ("raw", "ema", "bema")
Evaluate = Callable[[nn.Module], Mapping[str, object]]
StepNumbers = dict[str, float | int | None]
"""Numbers of one step; None stands for one that JSON has not."""
Loss = Callable[[nn.Module, Batch], Tensor]


class AverageConfig(Config):
    """EMA and BEMA of the run (see `averaging`)."""

    kappa: float = Field(default=0.5, ge=0)
    eta: float = Field(default=0.2, ge=0)
    rho: float = Field(default=10.0, gt=0)
    gamma: float = Field(default=1.0, ge=0)
    burn_in: int = Field(default=0, ge=0)
    every: int = Field(default=10, ge=1)


class TrainConfig(Config):
    """Everything about a run but the model and the task."""

    what: ClassVar[str] = "training"

    steps: int = Field(default=1000, ge=1)
    batch: int = Field(default=64, ge=1)
    length: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0)
    lr: float = Field(default=1e-3, gt=0)
    schedule: Schedule = Schedule(warmup=100)
    betas: tuple[float, float] = Field(default=(0.9, 0.95), strict=False)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    decay_embeddings: bool = Field(default=True, description="whether weight decay is on the token embedding too")
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="muon: for the matrices of branches, and adamw for the rest"
    )
    clip: float | None = Field(default=1.0, gt=0)
    accumulate: int = Field(default=1, ge=1)
    precision: Literal["float32", "bfloat16"] = "float32"
    average: AverageConfig = AverageConfig()
    log_every: int = Field(default=50, ge=1)
    evaluate_every: int | None = Field(default=None, ge=1, description="null: at the end only")
    evaluate_at: tuple[int, ...] = Field(default=(), strict=False, description="more steps to score at")
    checkpoint_every: int = Field(default=500, ge=1)
    diverged_above: float = Field(default=5.0, gt=1, description="times log(vocabulary), for `patience` steps")
    patience: int = Field(default=20, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _few_steps(cls, values: object) -> object:
        """The usual warm-up of 100 steps does not fit into fewer: then a tenth of them."""
        if not isinstance(values, dict) or "schedule" in values:
            return values
        steps = values.get("steps")
        return {**values, "schedule": {"warmup": steps // 10}} if type(steps) is int and 0 < steps < 100 else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schedule.warmup > self.steps:
            raise ValueError(
                f"schedule.warmup: {self.schedule.warmup} steps of warm-up do not fit into {self.steps} steps; give "
                f"schedule.warmup={self.steps // 10} or more steps"
            )
        return self


class TrainState(Config):
    """What a checkpoint holds besides tensors."""

    what: ClassVar[str] = "checkpoint"

    status: Status | None = None  # earlier versions did not say
    high: int = Field(ge=0)
    seconds: float = Field(ge=0)
    last: StepNumbers
    log: LogMark
    conditions: Conditions | None = None  # nor this

    @field_validator("log", mode="before")
    @classmethod
    def _size_alone(cls, value: object) -> object:
        return {"size": value} if isinstance(value, int) else value  # of earlier versions


def cross_entropy(logits: Tensor, batch: Batch, *, exact: bool) -> Tensor:
    """Mean over scored prefixes, against the sampled target or the exact law."""
    if not exact:
        return F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), ignore_index=IGNORE)
    assert batch.law is not None
    scored = (batch.targets != IGNORE).sum()
    law = batch.law.to(logits.dtype)
    return -(law * logits.log_softmax(-1)).sum() / scored


class Trainer:
    """`run()` trains to the end, or to wherever the machine lets it; called again it goes on from there.

    `evaluate(model)` returns plain values and is called for raw, EMA and BEMA weights. `loss(model, batch)` replaces
    the forward pass (the minimal model's fast path).
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainConfig,
        folder: str | Path,
        *,
        evaluate: Evaluate | None = None,
        loss: Loss | None = None,
        quiet: bool = False,
    ) -> None:
        task.check(config.batch, config.length)
        self.model, self.task, self.config, self.folder = model, task, config, Path(folder)
        self.evaluate, self.loss, self.quiet = evaluate, loss or self._loss, quiet
        self.device = next(model.parameters()).device
        self.optimizer = optim.make_optimizer(
            model,
            kind=config.optimizer,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            decay_embeddings=config.decay_embeddings,
        )
        self.average = BEMA(model, **config.average.to_dict())
        self.data = torch.Generator().manual_seed(config.seed)
        self.step, self.until, self.seconds, self.high = 0, config.steps, 0.0, 0
        self.status: Status = "running"
        self.last: StepNumbers = {}
        self.threshold = config.diverged_above * math.log(max(task.vocab_size, 2))

    # -- the run ---------------------------------------------------------------------------------------------------
    def run(self, *, until: int | None = None) -> dict[str, object]:
        """Train and return the summary (also in summary.json). Raises KeyboardInterrupt after saving on Ctrl-C.

        Stops at the step `until` with a checkpoint, and returns nothing yet, where that comes before the end.
        """
        self.until = self.config.steps if until is None else min(until, self.config.steps)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self._new_log()
        self.heartbeat = Heartbeat(self.folder)
        self._resume()
        self.log.open()
        try:
            with stop_signals() as stopped:
                self._train(stopped)
            if stopped:
                raise KeyboardInterrupt
            if self.status == "running" and self.step < self.config.steps:
                self.save()
                return {}
            return self._finish()
        finally:
            self.log.close()

    def _train(self, stopped: list[int]) -> None:
        config = self.config
        left = range(self.step, self.until if self.status == "running" else 0)  # a diverged run has ended
        begun = time.monotonic() - self.seconds
        self.model.train()
        if self.step == 0:
            self.observe()
        for _ in progress(left, what=f"{self.folder.name}: training", quiet=self.quiet or not left):
            self.last = self._one()
            self.seconds = time.monotonic() - begun
            self.heartbeat.beat()
            self._watch()
            self.observe()
            if self.step % config.log_every == 0 or self.step == config.steps or self.status == "diverged":
                self.log.write({"kind": "train", **self.last, "seconds": round(self.seconds, 3)})
            if self._scores_now() and self.step < config.steps:
                self.log.write({"kind": "evaluation", "step": self.step, "weights": self.scores()})
            stop = self._agree(stopped)
            if stop or (self.step % config.checkpoint_every == 0 and self.step < config.steps):
                self.save()
            if stop or self.status == "diverged":
                return

    def _scores_now(self) -> bool:
        every = self.config.evaluate_every
        return (every is not None and self.step % every == 0) or self.step in self.config.evaluate_at

    def _one(self) -> StepNumbers:
        """One optimizer step."""
        config = self.config
        self.step += 1
        rate = config.lr * config.schedule.factor(self.step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(config.accumulate):
            batch = self._batch()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                loss = self.loss(self.model, batch)
            (loss / config.accumulate if config.accumulate > 1 else loss).backward()
            total += loss.item() / config.accumulate
        total, norm = self._mean(total), self._clip()
        if math.isfinite(total) and math.isfinite(norm):  # else the weights stay as they last were
            self.optimizer.step()
            if callable(after := getattr(self.model, "after_step_", None)):
                after()
            self.average.update(self.step)
        return {"step": self.step, "loss": total, "grad_norm": norm, "lr": rate}

    def _batch(self) -> Batch:
        batch = self.task.sample(self.config.batch, self.config.length, self.data)
        if self.device.type == "cpu":
            return batch
        law = None if batch.law is None else batch.law.to(self.device, torch.float32)
        return Batch(batch.tokens.to(self.device), batch.targets.to(self.device), law)

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch.tokens), batch, exact=self.task.targets == "exact")

    def _clip(self) -> float:
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf).item()

    def _watch(self) -> None:
        """Divergence: a loss or gradient that is no number, or a loss far above chance for many steps on end."""
        loss, norm = self.last["loss"], self.last["grad_norm"]
        self.high = self.high + 1 if loss is not None and loss > self.threshold else 0
        if self._diverged(loss, norm):
            self.status = "diverged"

    def _diverged(self, loss: float | None, norm: float | None) -> bool:
        """None stands for a number that JSON has not: in a record from the disk."""
        known = loss is not None and norm is not None and math.isfinite(loss) and math.isfinite(norm)
        return not known or self.high >= self.config.patience

    def scores(self) -> dict[str, object]:
        """The evaluation of raw, EMA and BEMA weights."""
        if self.evaluate is None:
            return {}
        self.model.eval()
        try:
            with torch.no_grad():
                result: dict[str, object] = {"raw": self.evaluate(self.model)}
                for kind in self.average.kinds:
                    with self.average.averaged(kind):
                        result[kind] = self.evaluate(self.model)
        finally:
            self.model.train()
        return result

    def _finish(self) -> dict[str, object]:
        if self.status != "diverged":
            self.status = "finished"
            self.save()
        found = {
            "status": self.status,
            **self.last,
            "seconds": round(self.seconds, 3),
            "weights": self.scores(),
            **self.facts(),
            **provenance(self.device, self.config.seed),
        }
        self.log.write({"kind": "end", "step": self.step, "status": self.status})
        summary: dict[str, object] = finite({**found, "log": self.log.sync().to_dict()})
        self._write("summary.json", seal(summary))
        return summary

    # -- alone or one of many processes (see `distributed`) ------------------------------------------------------------
    def _new_log(self) -> Log:
        return Log(self.folder / "log.jsonl")

    def _write(self, name: str, value: object) -> None:
        write_json(inside(self.folder, name), value)

    def _mean(self, loss: float) -> float:
        return loss

    def _agree(self, stopped: list[int]) -> bool:
        return bool(stopped)

    # -- for subclasses ----------------------------------------------------------------------------------------------
    def observe(self) -> None:
        """Called before the first step and after each one; may write records to `self.log`."""

    def facts(self) -> dict[str, object]:
        """More values for the summary."""
        return {}

    # -- checkpoints -------------------------------------------------------------------------------------------------
    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def save(self) -> None:
        """Everything that the next step depends on, and where the log stood."""
        groups = {
            "model": self._tensors(),
            "optimizer": optim.moments(self.optimizer),
            "average": self.average.tensors(),
            "random": {"data": self.data.get_state(), "torch": torch.get_rng_state()},
        }
        checkpoint.save(self.folder / "checkpoint", self.step, groups, self._state().to_dict())

    def _state(self) -> TrainState:
        return TrainState(
            status=self.status,
            high=self.high,
            seconds=self.seconds,
            last=finite(self.last),
            log=self.log.sync(),
            conditions=Conditions.here(self.device),
        )

    @torch.no_grad()
    def _resume(self) -> None:
        found = checkpoint.latest(self.folder / "checkpoint", accept=self._accept)
        if found is None:
            self.log.cut(0)
            return
        weights = found.group("model")
        for name, tensor in self._tensors().items():
            tensor.copy_(weights[name])
        optim.load_moments(self.optimizer, found.group("optimizer"))
        self.average.load_tensors(found.group("average"), found.step)
        self._go_on(found)

    def _accept(self, found: checkpoint.Checkpoint) -> None:
        """Raise if the checkpoint is not one of this run, or the log is not the one that it knew."""
        self.log.check(found.state_as(TrainState).log)
        found.check("model", self._tensors())
        found.check("average", self.average.tensors())
        found.check("random", {"data": self.data.get_state(), "torch": torch.get_rng_state()})
        optim.check_moments(self.optimizer, found.group("optimizer"), found.path)

    def _go_on(self, found: checkpoint.Checkpoint) -> None:
        """The rest of a checkpoint, the same for one process and for many."""
        state, random = found.state_as(TrainState), found.group("random")
        self.data.set_state(random["data"])
        torch.set_rng_state(random["torch"])
        self.step, self.last, self.high, self.seconds = found.step, dict(state.last), state.high, state.seconds
        ended = bool(self.last) and self._diverged(self.last.get("loss"), self.last.get("grad_norm"))
        self.status = "diverged" if state.status == "diverged" or ended else "running"
        self.log.cut(state.log.size)
        changes = state.conditions.changes(Conditions.here(self.device)) if state.conditions else []
        if changes and self.status == "running" and self.step < self.config.steps:
            warnings.warn(
                f"{self.folder.name} goes on from step {self.step} under other conditions ({'; '.join(changes)}): it is the "
                "same run up to rounding, no longer bit for bit",
                stacklevel=2,
            )


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM become a mark that the loop sees between two steps; a second one stops at once."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
