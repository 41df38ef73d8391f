"""A run is described whole by its config.yaml, and finished if and only if its summary.json exists.

    <folder>/config.yaml    what to train, and how it is judged
    <folder>/log.jsonl      train, validation and layers records
    <folder>/checkpoint/    the last two
    <folder>/summary.json   written last

`run_folder(folder)` starts it, goes on with it, or returns what is there. Two processes never train the same run: a lock
makes the second wait, and then find the work done.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from normlab.errors import InputError
from normlab.experiments import memory
from normlab.experiments.measures import Measured, context_free_loss, layer_measures
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import check_data, is_stack, load, locked, read_summary
from normlab.experiments.runs.measured import held_out
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.score import ByLength
from normlab.experiments.runs.scoring import score
from normlab.experiments.runs.stack import run_stack
from normlab.model import Transformer
from normlab.model.memory import saved_bytes
from normlab.tasks import Batch
from normlab.training import Trainer
from normlab.training.loop import WEIGHTS
from normlab.training.minimal import FastMinimal, why_not


class RunTrainer(Trainer):
    """The one training loop, with the records of a run that is judged on held-out data."""

    def __init__(self, model: Measured, config: RunConfig, folder: Path, *, quiet: bool = True) -> None:
        super().__init__(model, config.task, config.train, folder, evaluate=self._final, quiet=quiet)
        self.run_config = config
        self.transformer = model
        shape = (config.held_out_batch, config.train.length)
        self.held_out = held_out(config.task, config.held_out.sequences, *shape)
        self.curve = held_out(config.task, config.held_out.curve_sequences, *shape)
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
                batch, *more = self._samples()
                found = layer_measures(
                    self.transformer, batch, self._loss, prune=self.run_config.held_out.prune, more=more
                )
                self.log.write({"kind": "layers", "step": self.step, **asdict(found)})
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

    def _final(self, _model: nn.Module) -> dict[str, object]:
        self._ends.append(self.mean_loss(self.held_out))
        return {"loss": self._ends[-1]}

    def _samples(self) -> list[Batch]:
        """For the measures of layers: as many batches as gradients are averaged over, or as there are."""
        count, wanted = self.run_config.held_out.layer_sequences, self.run_config.held_out.gradient_batches
        return [
            Batch(*(None if t is None else t[start : start + count] for t in _tensors(part)))  # type: ignore[arg-type]
            for part in self.held_out
            for start in range(0, len(part.tokens) - count + 1, count)
        ][:wanted]

    def facts(self) -> dict[str, object]:
        """Cost: what a step takes, holds and computes. The median step, since records fall between two steps."""
        train, model = self.run_config.train, self.transformer
        tokens = self.run_config.tokens_a_step
        step = self.median_step()
        batch = self.task.sample(train.batch, train.length, torch.Generator().manual_seed(0))
        return {
            "validation": self.validation,
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

    @property
    def validation(self) -> float:
        """At the end, of the raw weights, which are scored first; there are earlier scores with `evaluate_every`."""
        return self._ends[-len(WEIGHTS)]

    def median_step(self) -> float | None:
        return statistics.median(self._durations) if self._durations else None

    def _to_device(self, batch: Batch) -> Batch:
        return Batch(*(None if t is None else t.to(self.device) for t in _tensors(batch)))  # type: ignore[arg-type]


def _tensors(batch: Batch) -> tuple[torch.Tensor | None, ...]:
    return batch.tokens, batch.targets, batch.law


def trainer_of(
    config: RunConfig, folder: Path, *, device: str = "cpu", quiet: bool = True, compiled: bool = False
) -> Trainer:
    """The trainer that this run's score asks for."""
    model = config.build_seeded(device=device)
    if compiled:
        if not isinstance(model, Transformer):
            raise InputError("--compile is for normlab's own models; this run has a backbone: leave it out")
        model.compile_branches()
    if not isinstance(config.score, ByLength):
        return RunTrainer(model, config, folder, quiet=quiet)
    lengths, count = config.score.lengths, config.score.count
    # The fast path computes the same loss and gradients; it is for the CPU and one shape of model only.
    fast = why_not(model) is None and device == "cpu"
    return Trainer(
        model,
        config.task,
        config.train,
        folder,
        evaluate=lambda m: score(m, config.scored, lengths, count=count),
        loss=FastMinimal(model, exact=config.task.targets == "exact") if fast else None,
        quiet=quiet,
    )


def run_folder(
    folder: str | Path,
    *,
    threads: int | None = 1,
    device: str = "cpu",
    quiet: bool = True,
    until: int | None = None,
    compiled: bool = False,
) -> list[FinishedRun]:
    """Train what is in this folder, a run or a stack of them, to its end, from wherever it stands.

    Where the step `until` comes before the end it stops there with a checkpoint, and nothing has finished yet.
    `compiled` compiles the branches of a single run; a stack has its own fast path.
    """
    folder = Path(folder)
    if threads is not None:
        torch.set_num_threads(threads)
    if is_stack(folder):
        return run_stack(folder, device=device, quiet=quiet, until=until)
    config = load(folder)
    if (ended := read_run(folder)) is not None:  # nothing is written, and the folder may be read-only
        return [ended]
    with locked(folder):
        if read_summary(folder) is None:
            check_data(folder.resolve().parent, config.task)
            with torch.random.fork_rng(devices=[]):
                trainer_of(config, folder, device=device, quiet=quiet, compiled=compiled).run(until=until)
    done = read_run(folder)
    return [] if done is None else [done]
