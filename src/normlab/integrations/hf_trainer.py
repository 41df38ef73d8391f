"""`nl.hf.MonitorCallback`: the monitor in a Hugging Face Trainer.

    monitor = nl.hf.MonitorCallback(every=50).attach(trainer)
    trainer.train()

`attach` (rather than `callbacks=[...]`) because gradients must be read before clipping, and the Trainer has no event
there: its clipping function is wrapped on the instance. It also puts the callback first, so that the values reach
every tracker that the Trainer reports to.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn
from typing_extensions import Unpack

from normlab.errors import ConfigError, require
from normlab.probes.monitor import Monitor, MonitorOptions

transformers = require("transformers", extra="hf", purpose="nl.hf.MonitorCallback")


class Arguments(Protocol):
    """What is read of transformers.TrainingArguments."""

    output_dir: str
    max_grad_norm: float | None


class State(Protocol):
    """What is read of transformers.TrainerState."""

    global_step: int
    is_world_process_zero: bool
    log_history: list[dict[str, float]]


class Accelerator(Protocol):
    clip_grad_norm_: Callable[..., Tensor | None]


class Handler(Protocol):
    callbacks: list[object]


class HuggingFaceTrainer(Protocol):
    """What is used of transformers.Trainer."""

    accelerator: Accelerator
    callback_handler: Handler


class MonitorCallback(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
    """Runs at: train begin (hooks are planned), step begin and substep end (armed), clipping (gradients), step end."""

    def __init__(self, *, every: int = 50, **options: Unpack[MonitorOptions]) -> None:
        self.every, self.options = every, options
        self.monitor: Monitor | None = None
        self.trainer: HuggingFaceTrainer | None = None
        self.latest: dict[str, float] = {}

    def attach(self, trainer: HuggingFaceTrainer) -> MonitorCallback:
        self.trainer = trainer
        trainer.callback_handler.callbacks.insert(0, self)
        clip = trainer.accelerator.clip_grad_norm_

        @functools.wraps(clip)
        def watched(*args: object, **kwargs: object) -> Tensor | None:
            if self.monitor is not None:
                self.monitor.gradients()
            return clip(*args, **kwargs)

        trainer.accelerator.clip_grad_norm_ = watched
        return self

    def on_train_begin(self, args: Arguments, state: State, control: object, *, model: nn.Module, **_: object) -> None:
        if self.trainer is None:
            raise ConfigError(
                "MonitorCallback was passed in callbacks=[...]; use MonitorCallback(...).attach(trainer), because "
                "gradients must be read before the Trainer clips them"
            )
        self.monitor = Monitor(model, every=self.every, **self.options)

    def on_step_begin(self, args: Arguments, state: State, control: object, **_: object) -> None:
        if self.monitor is not None:
            self.monitor.before_step()

    def on_pre_optimizer_step(self, args: Arguments, state: State, control: object, **_: object) -> None:
        if self.monitor is not None and not args.max_grad_norm:  # nothing was clipped, and the wrapper was not called
            self.monitor.gradients()

    def on_step_end(self, args: Arguments, state: State, control: object, **_: object) -> None:
        if self.monitor is None:
            return
        values = self.monitor.step()
        if values:
            self.latest = values
            state.log_history.append({**values, "step": state.global_step})

    def on_log(
        self, args: Arguments, state: State, control: object, logs: dict[str, object] | None = None, **_: object
    ) -> None:
        if logs is not None and self.latest:
            logs.update(self.latest)
            self.latest = {}

    def on_train_end(self, args: Arguments, state: State, control: object, **_: object) -> None:
        if self.monitor is not None and state.is_world_process_zero:
            print(self.monitor.close(), file=sys.stderr)
