"""Many small models at once: K members of one shape as one batched program, numerically equal to K separate runs.

Small models spend their time in the overhead of each operation, not in arithmetic; stacked along a new axis (torch.func)
K of them cost little more than one. Large ones gain nothing and are better off as one single-threaded process a core.
`choose` decides by shape and says why.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from normlab.config import Config
from normlab.errors import ConfigError
from normlab.files import write_json
from normlab.report.terminal import finite, progress
from normlab.schemes import Scheme
from normlab.store import Heartbeat, damaged, inside, seal
from normlab.tasks import Batch, Task
from normlab.training import checkpoint
from normlab.training.averaging import BEMA
from normlab.training.feed import Feed
from normlab.training.loop import WEIGHTS, Evaluate, StepNumbers, TrainConfig, cross_entropy, stop_signals
from normlab.training.optim import decayed
from normlab.training.record import Log, LogMark, provenance
from normlab.training.stacked import COMPILE_FROM, can_compile, stacked_program, stacks

# Measured on two cores (benchmarks/ensemble.py). Stacking goes on paying a little up to 16,000 numbers in an activation,
# but it is one thread: it has to beat one worker a core, so it is chosen only where it is three times as fast.
STACK_BELOW = 2_048
STACK_FROM = 8
FAST_BELOW = 32_768  # the compiled fast path: beyond it one member fills the cache, and each is better off alone
SHARED = ("optimizer", "decay_embeddings", "steps", "batch", "length", "schedule", "betas", "eps", "accumulate",
          "precision", "average", "log_every", "evaluate_every", "evaluate_at", "checkpoint_every", "diverged_above",
          "patience")  # fmt: skip


@dataclass(frozen=True)
class Choice:
    how: Literal["stacked", "separate"]
    why: str
    members: int | None = None
    """Of one program, where it serves fewer than all; None: all."""


def choose(models: Sequence[nn.Module], config: TrainConfig) -> Choice:
    """Stacked or separate, by shape."""
    model = models[0]
    settings = getattr(model, "config", None)
    if getattr(settings, "dropout", 0.0) > 0:
        return Choice("separate", "dropout draws from one random state per model")
    scheme = getattr(model, "scheme", None)
    if isinstance(scheme, Scheme) and type(scheme).after_step_ is not Scheme.after_step_:
        return Choice("separate", "the scheme changes the weights after each step")
    if config.optimizer != "adamw":
        return Choice("separate", f"{config.optimizer} is not stacked")
    size = config.batch * config.length * getattr(settings, "dim", 1)
    if stacks(model) and config.steps >= COMPILE_FROM and config.accumulate == 1 and can_compile():
        words = f"the minimal model's compiled fast path pays from {COMPILE_FROM} steps"
        return Choice("stacked", words, None if size <= FAST_BELOW else 1)
    if len(models) == 1:
        return Choice("separate", "there is one model only")
    if config.accumulate > 1 or config.precision != "float32":
        return Choice("separate", "accumulation and bfloat16 are for large models")
    if len(models) < STACK_FROM:
        return Choice("separate", f"there are {len(models)} models only, stacking pays from {STACK_FROM}")
    words = f"an activation has {size} numbers (batch x length x dim), stacking pays up to {STACK_BELOW}"
    return Choice("stacked" if size <= STACK_BELOW else "separate", words)


class StackState(Config):
    """What a checkpoint of a stack holds besides tensors."""

    what: ClassVar[str] = "checkpoint"

    used: int = Field(ge=0)
    seconds: float = Field(default=0.0, ge=0)
    logs: list[LogMark]
    last: list[StepNumbers]

    @model_validator(mode="before")
    @classmethod
    def _earlier(cls, values: object) -> object:
        """Earlier versions wrote the lengths of the logs alone, and a section for the one value of the feed."""
        if not isinstance(values, dict) or not isinstance(values.get("feed"), dict):
            return values
        rest = {key: value for key, value in values.items() if key != "feed"}
        sizes = values.get("logs")
        if isinstance(sizes, list):
            rest["logs"] = [{"size": size} if isinstance(size, int) else size for size in sizes]
        return {**rest, "used": values["feed"].get("used")}


class Ensemble:
    """K models of one shape; seeds, learning rates, weight decay and clipping may differ from member to member.

    `folders`, one a member, receive what a separate run leaves there: log.jsonl and summary.json. The checkpoint is
    one, in `folder`. A member that diverges is recorded and keeps its last weights; the others go on.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        task: Task,
        configs: Sequence[TrainConfig],
        folder: str | Path,
        *,
        folders: Sequence[str | Path] | None = None,
        evaluate: Evaluate | None = None,
        quiet: bool = False,
    ) -> None:
        _check(models, configs)
        self.models, self.task, self.configs = list(models), task, list(configs)
        self.folder, self.evaluate, self.quiet = Path(folder), evaluate, quiet
        self.folders = [Path(f) for f in folders or [self.folder / f"member-{i}" for i in range(len(models))]]
        self.shared = configs[0]
        task.check(self.shared.batch, self.shared.length)
        self.base = copy.deepcopy(self.models[0]).to("meta")
        self.shapes = {name: p.shape for name, p in self.models[0].named_parameters()}
        self.flat = torch.stack([_flatten(m) for m in self.models]).requires_grad_()
        self.buffers = {
            name: torch.stack([dict(m.named_buffers())[name] for m in self.models])
            for name, _ in self.models[0].named_buffers()
        }
        self.m, self.v = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        decays = decayed(self.models[0], embeddings=self.shared.decay_embeddings)
        mask = torch.cat([torch.full((p.numel(),), float(decays[n])) for n, p in self.models[0].named_parameters()])
        self.decay = torch.tensor([[c.weight_decay] for c in configs]) * mask
        self.rates = torch.tensor([[c.lr] for c in configs], dtype=torch.float64)
        self.clips = torch.tensor([c.clip or math.inf for c in configs])
        self.average = BEMA({"flat": self.flat}, **self.shared.average.to_dict())
        generators = [torch.Generator().manual_seed(c.seed) for c in configs]
        self.feed = Feed(task, self.shared.batch, self.shared.length, generators)
        self.fast = stacked_program(self.models, task, self.shared.steps)
        self.alive = torch.ones(len(models), dtype=torch.bool)
        self.high = torch.zeros(len(models), dtype=torch.int64)
        self.step, self.until, self.seconds = 0, self.shared.steps, 0.0
        self.last: list[StepNumbers] = [{} for _ in models]

    def run(self, *, until: int | None = None) -> list[dict[str, object]]:
        """Train all members and return their summaries; none yet where `until` stops before the end."""
        self.until = self.shared.steps if until is None else min(until, self.shared.steps)
        self.logs = [Log(folder / "log.jsonl") for folder in self.folders]
        for folder in (self.folder, *self.folders):
            folder.mkdir(parents=True, exist_ok=True)
        self._resume()
        for log in self.logs:
            log.open()
        try:
            with stop_signals() as stopped:
                self._train(stopped)
            if stopped:
                raise KeyboardInterrupt
            if self.step < self.shared.steps and self.alive.any():
                self.save()
                return []
            return self._finish()
        finally:
            for log in self.logs:
                log.close()

    def _train(self, stopped: list[int]) -> None:
        heartbeat = Heartbeat(self.folder)
        begun = time.monotonic() - self.seconds
        left = range(self.step, self.until if self.alive.any() else 0)
        for _ in progress(left, what=f"{len(self.models)} models at once", quiet=self.quiet or not left):
            self._one()
            self.seconds = time.monotonic() - begun
            heartbeat.beat()
            if self.step in self.shared.evaluate_at and self.step < self.shared.steps:
                self._look()
            if stopped or (self.step % self.shared.checkpoint_every == 0 and self.step < self.shared.steps):
                self.save()
            if stopped or not self.alive.any():
                return

    # -- one step --------------------------------------------------------------------------------------------------
    def losses(self, batch: Batch) -> Tensor:
        """The loss of each member on its own part of the batch, differentiable in `flat`."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = self.flat.split(sizes, dim=1)
        weights = {n: p.view(-1, *shape) for (n, shape), p in zip(self.shapes.items(), parts, strict=True)}
        exact = self.task.targets == "exact"
        law = batch.law.to(self.flat.dtype) if exact and batch.law is not None else batch.targets

        def one(
            state: tuple[dict[str, Tensor], dict[str, Tensor]], tokens: Tensor, targets: Tensor, law: Tensor
        ) -> Tensor:
            logits = functional_call(self.base, state, (tokens,))
            return cross_entropy(logits, Batch(tokens, targets, law), exact=exact)

        # The CPU's fused attention has no batching rule (it would loop over members); the plain form batches.
        with sdpa_kernel(SDPBackend.MATH):
            return vmap(one)((weights, self.buffers), batch.tokens, batch.targets, law)

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses [members] and their gradients [members, parameters]."""
        if self.fast is not None:
            return self.fast(self.flat, batch.tokens, batch.targets, batch.law)
        losses = self.losses(batch)
        return losses.detach(), torch.autograd.grad(losses.sum(), self.flat)[0]

    def _one(self) -> None:
        config = self.shared
        self.step += 1
        losses, gradient = self.gradients(next(self.feed))
        norms = gradient.norm(dim=1)
        before = self.alive.tolist()
        self._watch(losses, norms)
        factor = config.schedule.factor(self.step, config.steps)
        self._update(gradient * (self.clips / (norms + 1e-6)).clamp_max(1.0)[:, None], factor)
        self._average()
        for i, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True)):
            if not before[i]:  # diverged earlier: its record stays as it was
                continue
            self.last[i] = {"step": self.step, "loss": loss, "grad_norm": norm, "lr": self.configs[i].lr * factor}
            if self.step % config.log_every == 0 or self.step == config.steps or not self.alive[i]:
                self.logs[i].write({"kind": "train", **self.last[i]})

    @torch.no_grad()
    def _average(self) -> None:
        """Averages of those that are alive: a separate run ends where it diverges."""
        ended = ~self.alive
        kept = [(t, t[ended].clone()) for t in self.average.tensors().values()] if bool(ended.any()) else []
        self.average.update(self.step)
        for tensor, rows in kept:
            tensor[ended] = rows

    @torch.no_grad()
    def _update(self, gradient: Tensor, factor: float) -> None:
        """AdamW on all members; one that is not alive keeps its weights, whatever its gradient is."""
        config, n = self.shared, self.step
        (b1, b2), alive = config.betas, self.alive[:, None]
        gradient = torch.where(alive, gradient, 0.0)
        self.m.lerp_(gradient, 1 - b1)
        self.v.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        rate = (self.rates * factor).to(self.flat.dtype)
        size = (self.v.sqrt() / math.sqrt(1 - b2**n)).add_(config.eps)
        moved = self.flat * (1 - rate * self.decay) - (rate / (1 - b1**n)) * self.m / size
        self.flat.copy_(torch.where(alive, moved, self.flat))

    def _watch(self, losses: Tensor, norms: Tensor) -> None:
        threshold = self.shared.diverged_above * math.log(max(self.task.vocab_size, 2))
        self.high = torch.where(losses > threshold, self.high + 1, 0)
        fine = losses.isfinite() & norms.isfinite() & (self.high < self.shared.patience)
        self.alive &= fine

    # -- ends and checkpoints ----------------------------------------------------------------------------------------
    def member(self, index: int, kind: str = "raw") -> nn.Module:
        """The model of one member with its raw, ema or bema weights (the very module that was given)."""
        row = self.flat if kind == "raw" else self.average.weights(kind)["flat"]
        _unflatten(self.models[index], row[index].detach())
        return self.models[index]

    def _look(self) -> None:
        """Scores on the way, of every member that is alive."""
        for i, log in enumerate(self.logs):
            if self.alive[i]:
                scores = {kind: self._score(self.member(i, kind).eval()) for kind in WEIGHTS}
                log.write({"kind": "evaluation", "step": self.step, "weights": scores})
                self.member(i)

    def _score(self, model: nn.Module) -> object:
        with torch.no_grad():
            return {} if self.evaluate is None else self.evaluate(model)

    def _finish(self) -> list[dict[str, object]]:
        self.save()
        summaries = []
        for i, folder in enumerate(self.folders):
            scores: dict[str, object] = {}
            kept: dict[str, Tensor] = {}
            for kind in WEIGHTS:
                model = self.member(i, kind).eval()
                kept |= {f"{kind}/{name}": p.detach().clone() for name, p in model.named_parameters()}
                if self.evaluate is not None:
                    scores[kind] = self._score(model)
            # Where a separate run keeps them, so that readers of a run need not know how it was trained.
            model_weights = {key[4:]: t for key, t in kept.items() if key.startswith("raw/")}
            averages = {key: t for key, t in kept.items() if not key.startswith("raw/")}
            checkpoint.save(folder / "checkpoint", self.step, {"model": model_weights, "average": averages}, {})
            status = "finished" if self.alive[i] else "diverged"
            origin = provenance(self.flat.device, self.configs[i].seed)
            self.logs[i].write({"kind": "end", "step": self.last[i]["step"], "status": status})
            mark = self.logs[i].sync().to_dict()
            share = round(self.seconds / len(self.models), 3)  # of what the stack took
            found = {"status": status, **self.last[i], "seconds": share, "weights": scores, **origin, "log": mark}
            summary = finite(found)
            write_json(inside(folder, "summary.json"), seal(summary))
            summaries.append(summary)
            self.member(i)
        return summaries

    def save(self) -> None:
        groups = {
            "ensemble": self._tensors(),
            "average": self.average.tensors(),
            "data": self.feed.state()[0],
        }
        marks = [log.sync() for log in self.logs]
        used = self.feed.state()[1]["used"]
        state = StackState(used=used, seconds=self.seconds, logs=marks, last=finite(self.last))
        checkpoint.save(self.folder / "checkpoint", self.step, groups, state.to_dict())

    @torch.no_grad()
    def _resume(self) -> None:
        found = checkpoint.latest(self.folder / "checkpoint", accept=self._accept)
        if found is None:
            for log in self.logs:
                log.cut(0)
            return
        state = found.state_as(StackState)
        for log, mark in zip(self.logs, state.logs, strict=True):
            log.cut(mark.size)
        tensors = found.group("ensemble")
        for name, mine in self._tensors().items():
            mine.copy_(tensors[name])
        self.average.load_tensors(found.group("average"), found.step)
        self.feed.load(found.group("data"), {"used": state.used})
        self.step, self.seconds, self.last = found.step, state.seconds, [dict(row) for row in state.last]

    def _accept(self, found: checkpoint.Checkpoint) -> None:
        """Raise if the checkpoint is not one of these runs, or a log is not the one that it knew."""
        state = found.state_as(StackState)
        if not len(state.logs) == len(state.last) == len(self.models):
            raise damaged(found.path, f"it is of {len(state.logs)} members, not {len(self.models)}", checkpoint.REMEDY)
        for log, mark in zip(self.logs, state.logs, strict=True):
            log.check(mark)
        found.check("ensemble", self._tensors())
        found.check("average", self.average.tensors())
        found.check("data", self.feed.state()[0])

    def _tensors(self) -> dict[str, Tensor]:
        return {"flat": self.flat, "m": self.m, "v": self.v, "alive": self.alive, "high": self.high}


def _check(models: Sequence[nn.Module], configs: Sequence[TrainConfig]) -> None:
    if not models:
        raise ConfigError("an ensemble of 0 models has nothing to train; give at least one")
    if len(models) != len(configs):
        raise ConfigError(f"{len(models)} models need as many training configurations, but {len(configs)} were given")
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in models]
    if any(s != shapes[0] for s in shapes) or any(type(m) is not type(models[0]) for m in models):
        raise ConfigError("the members of an ensemble have one shape; train models of different shapes separately")
    schemes = {getattr(getattr(m, "config", None), "scheme", None) for m in models}
    if len(schemes) > 1:
        raise ConfigError("the members of an ensemble run one program, hence one scheme; make an ensemble for each")
    if configs[0].optimizer != "adamw":
        raise ConfigError(f"an ensemble trains with adamw; train with {configs[0].optimizer} separately")
    for key in SHARED:
        if any(getattr(c, key) != getattr(configs[0], key) for c in configs):
            raise ConfigError(f"the members of an ensemble share {key!r}; lr, seed, weight_decay and clip may differ")


def _flatten(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@torch.no_grad()
def _unflatten(model: nn.Module, row: Tensor) -> None:
    at = 0
    for p in model.parameters():
        p.copy_(row[at : at + p.numel()].view_as(p))
        at += p.numel()
