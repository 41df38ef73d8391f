"""One run: a model, a task, a training configuration and a folder. Finished runs are skipped, others go on.

`runs/<experiment>/<run>/config.yaml` is the whole configuration; a folder that holds another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from typing_extensions import Self

from normlab.config import Config as _Config
from normlab.config import load_yaml
from normlab.errors import ConfigError
from normlab.experiments.folder import AnyTask, differences, locked
from normlab.experiments.scoring import score
from normlab.files import write_json, write_text
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import Task
from normlab.training import TrainConfig, Trainer
from normlab.training.ensemble import Ensemble
from normlab.training.minimal import FastMinimal, why_not

PATIENCE = 45.0  # seconds: a worker outlives a killed parent until it has saved (at most ORPHAN_SECONDS)
STACK = "stacked.json"  # in the folder of a stack: the names of its members


class RunConfig(_Config):
    """Everything that decides a run."""

    what: ClassVar[str] = "run"

    model: TransformerConfig
    task: AnyTask
    train: TrainConfig
    test_lengths: tuple[int, ...] = Field(min_length=1, strict=False)
    test_count: int = Field(default=256, ge=1)
    test_task: AnyTask | None = Field(default=None, description="score on this task instead, for example deeper Dyck")

    @property
    def scored(self) -> Task:
        return self.task if self.test_task is None else self.test_task

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.task.check(self.train.batch, self.train.length)
        for length in self.test_lengths:
            self.scored.held_out().check(self.test_count, length)
        if self.scored.vocab_size != self.task.vocab_size:
            raise ValueError(
                f"test_task: {self.scored.vocab_size} tokens are not the {self.task.vocab_size} of the training task"
            )
        longest = max(*self.test_lengths, self.train.length)
        if self.model.positions == "learned" and longest > self.model.max_length:
            raise ValueError(
                f"test_lengths: {longest} is beyond the table of {self.model.max_length} learned positions; shorten it, "
                "raise model.max_length, or take rope, nope or sinusoidal positions"
            )
        if self.model.vocab_size != self.task.vocab_size:
            raise ValueError(
                f"model.vocab_size: {self.model.vocab_size} is not the {self.task.vocab_size} of the task {self.task.name!r}"
            )
        return self


def build(config: RunConfig) -> Transformer:
    """The model at the start of the run: its weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        model = Transformer(config.model)
        own = config.task.embedding(config.model.dim)
        if own is not None:
            model.replace_embedding_(own)
    return model


def run(config: RunConfig, folder: str | Path, *, device: str = "cpu", quiet: bool = False) -> dict[str, Any]:
    """Train, score raw, EMA and BEMA weights, and return the summary; what is finished is read, not run again."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=PATIENCE):
        _claim(folder, config)
        done = folder / "summary.json"
        if done.exists():
            return json.loads(done.read_text(encoding="utf-8"))
        model = build(config).to(device)
        # The fast path computes the same loss and gradients; it is for the CPU and one shape of model only.
        fast = why_not(model) is None and device == "cpu"
        trainer = Trainer(
            model,
            config.task,
            config.train,
            folder,
            evaluate=lambda m: score(m, config.scored, config.test_lengths, count=config.test_count),
            loss=FastMinimal(model, exact=config.task.targets == "exact") if fast else None,
            quiet=quiet,
        )
        return trainer.run()


def run_stacked(
    cells: Mapping[str, RunConfig], folder: str | Path, *, device: str = "cpu", quiet: bool = False
) -> list[dict[str, Any]]:
    """Cells that differ in seed and learning rate only, as one program; each leaves in `folder/<name>` what `run` would."""
    folders = [Path(folder) / name for name in cells]
    configs = list(cells.values())
    together = folders[0] / "stacked"
    together.mkdir(parents=True, exist_ok=True)
    with locked(together, wait=PATIENCE):
        for path, config in zip(folders, configs, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            _claim(path, config)
        first = configs[0]
        return Ensemble(
            [build(config).to(device) for config in configs],
            first.task,
            [config.train for config in configs],
            together,
            folders=folders,
            evaluate=lambda m: score(m, first.scored, first.test_lengths, count=first.test_count),
            quiet=quiet,
        ).run()


def prepare(folder: Path, config: RunConfig) -> Path:
    """Make the folder of a run for a worker, or check that it holds this very run."""
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, config)
    return folder


def prepare_stack(cells: Mapping[str, RunConfig], folder: Path) -> Path:
    """The same for runs that are trained as one program: returns the folder that stands for them all."""
    folders = [prepare(folder / name, config) for name, config in cells.items()]
    write_json(folders[0] / "stacked" / STACK, list(cells))
    return folders[0] / "stacked"


def stacks(folder: Path) -> list[tuple[str, ...]]:
    """The members of every stack that was begun in this folder."""
    files = sorted(folder.glob(f"*/stacked/{STACK}"))
    return [tuple(json.loads(file.read_text(encoding="utf-8"))) for file in files]


def run_folder(folder: Path, *, device: str = "cpu") -> None:
    """Run what `prepare` or `prepare_stack` left here."""
    if not (folder / STACK).exists():
        run(RunConfig.from_file(folder / "config.yaml"), folder, device=device, quiet=True)
        return
    root = folder.parent.parent
    names = json.loads((folder / STACK).read_text(encoding="utf-8"))
    run_stacked(
        {name: RunConfig.from_file(root / name / "config.yaml") for name in names}, root, device=device, quiet=True
    )


def is_run(folder: Path) -> bool:
    """A run or a stack of runs, and not a cell of a comparison."""
    path = folder / "config.yaml"
    if (folder / STACK).exists() or not path.exists():
        return (folder / STACK).exists()
    values = load_yaml(path.read_text(encoding="utf-8"), source=str(path))
    return isinstance(values, dict) and "test_lengths" in values


def _claim(folder: Path, config: RunConfig) -> None:
    path = folder / "config.yaml"
    if not path.exists():
        write_text(path, config.to_yaml())
        return
    there = load_yaml(path.read_text(encoding="utf-8"), source=str(path))
    mine = config.to_dict()
    if there != mine:
        other = sorted(key for key, _, _ in differences(there, mine))
        raise ConfigError(
            f"the folder {str(folder)!r} holds a run of another configuration (different: {', '.join(other)}); "
            "choose another --out, or delete it"
        )
