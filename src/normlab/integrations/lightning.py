"""`nl.lightning.MonitorCallback`: the monitor in a Lightning Trainer.

trainer = Trainer(callbacks=[nl.lightning.MonitorCallback(every=50)])
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import nn
from typing_extensions import Unpack

from normlab.errors import require
from normlab.probes.monitor import Monitor, MonitorOptions

pytorch = require("lightning.pytorch", extra="lightning", purpose="nl.lightning.MonitorCallback")


class Logger(Protocol):
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None: ...


class LightningTrainer(Protocol):
    """What is read of lightning.pytorch.Trainer."""

    @property
    def global_step(self) -> int: ...
    @property
    def is_global_zero(self) -> bool: ...
    @property
    def loggers(self) -> Sequence[Logger]: ...


class MonitorCallback(pytorch.Callback):  # type: ignore[name-defined, misc]
    """Runs at: train start, batch start (armed), before the optimizer step (Lightning clips after it), batch end.

    `attribute` names the model inside the LightningModule; without it the whole module is searched for layers.
    """

    def __init__(self, *, every: int = 50, attribute: str | None = None, **options: Unpack[MonitorOptions]) -> None:
        self.every, self.attribute, self.options = every, attribute, options
        self.monitor: Monitor | None = None
        self.seen = 0

    def on_train_start(self, trainer: LightningTrainer, pl_module: nn.Module) -> None:
        model = getattr(pl_module, self.attribute) if self.attribute else pl_module
        self.monitor, self.seen = Monitor(model, every=self.every, **self.options), trainer.global_step

    def on_train_batch_start(
        self, trainer: LightningTrainer, pl_module: nn.Module, batch: object, batch_idx: int
    ) -> None:
        assert self.monitor is not None
        self.monitor.before_step()

    def on_before_optimizer_step(self, trainer: LightningTrainer, pl_module: nn.Module, optimizer: object) -> None:
        assert self.monitor is not None
        self.monitor.gradients()

    def on_train_batch_end(
        self, trainer: LightningTrainer, pl_module: nn.Module, outputs: object, batch: object, batch_idx: int
    ) -> None:
        assert self.monitor is not None
        if trainer.global_step == self.seen:  # a micro-batch: the optimizer has not stepped
            return
        self.seen = trainer.global_step
        values = self.monitor.step()
        for logger in trainer.loggers if values else []:
            logger.log_metrics(values, step=trainer.global_step)

    def on_train_end(self, trainer: LightningTrainer, pl_module: nn.Module) -> None:
        if self.monitor is not None and trainer.is_global_zero:
            print(self.monitor.close(), file=sys.stderr)
