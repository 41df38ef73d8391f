"""One run on several processes (`normlab train` under torchrun)."""

from __future__ import annotations

from pathlib import Path

import torch

from normlab.errors import ConfigError
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import locked, prepare, read_summary
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.trainer import RunTrainer
from normlab.training.distributed import Distributed, Group, Strategy, check_batch, process_group


class DistributedRun(Distributed, RunTrainer):
    """A run's records from the main process; layers are not looked into (they may be in shards)."""

    def facts(self) -> dict[str, object]:
        tokens = self.run_config.tokens_a_step
        seconds = self.median_step()
        return {
            "validation": self.validation,
            "tokens": tokens * self.step,
            "tokens_per_second": tokens / seconds if seconds else None,
            "parameters": self.transformer.num_parameters(),
            "processes": self.group.world,
        }


def check(config: RunConfig, folder: str | Path, *, processes: int = 1) -> None:
    """Raise for what can be known to fail before the folder is made: the corrected command is then no other run."""
    check_batch(config.train.batch, processes)
    if processes > 1 and config.train.optimizer != "adamw":
        raise ConfigError(f"train.optimizer: several processes train with adamw, not with {config.train.optimizer}")
    if read_summary(folder) is None:  # what is finished needs no data
        config.check()


def train_distributed(
    config: RunConfig, folder: str | Path, *, strategy: Strategy, device: str = "cpu", quiet: bool = False
) -> FinishedRun | None:
    """Train with the other processes of torchrun; the finished run on the main process, None on the others."""
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    blind = config.replace(score=config.held_out.replace(layers=(), prune=False))
    with process_group(device) as group:
        group.together(lambda: check(config, folder, processes=group.world))
        group.together(lambda: prepare(folder, config) if group.main else None)
        if group.main:
            with locked(Path(folder)):
                _run(blind, Path(folder), group, strategy, quiet)
            return read_run(folder)
        _run(blind, Path(folder), group, strategy, quiet=True)
        return None


def _run(config: RunConfig, folder: Path, group: Group, strategy: Strategy, quiet: bool) -> None:
    torch.distributed.barrier()  # the main process holds the lock now
    if read_summary(folder) is not None:
        return
    model = config.build_seeded(device=str(group.device))
    DistributedRun(model, config, folder, group=group, strategy=strategy, quiet=quiet).run()
