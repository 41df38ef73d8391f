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
from typing import Any

from normlab.errors import ConfigError, require
from normlab.probes.monitor import Monitor

transformers = require("transformers", extra="hf", purpose="nl.hf.MonitorCallback")


class MonitorCallback(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
    """Runs at: train begin (hooks are planned), step begin and substep end (armed), clipping (gradients), step end."""

    def __init__(self, *, every: int = 50, **options: Any) -> None:
        self.every, self.options = every, options
        self.monitor: Monitor | None = None
        self.trainer: Any = None
        self.latest: dict[str, float] = {}

    def attach(self, trainer: Any) -> MonitorCallback:
        self.trainer = trainer
        trainer.callback_handler.callbacks.insert(0, self)
        clip = trainer.accelerator.clip_grad_norm_

        @functools.wraps(clip)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.monitor is not None:
                self.monitor.gradients()
            return clip(*args, **kwargs)

        trainer.accelerator.clip_grad_norm_ = watched
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self.trainer is None:
            raise ConfigError(
                "MonitorCallback was passed in callbacks=[...]; use MonitorCallback(...).attach(trainer), because "
                "gradients must be read before the Trainer clips them"
            )
        self.monitor = Monitor(model, every=self.every, **self.options)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.monitor is not None:
            self.monitor.before_step()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.monitor is not None and not args.max_grad_norm:  # nothing was clipped, and the wrapper was not called
            self.monitor.gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.monitor is None:
            return
        values = self.monitor.step()
        if values:
            self.latest = values
            state.log_history.append({**values, "step": state.global_step})

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs is not None and self.latest:
            logs.update(self.latest)
            self.latest = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.monitor is not None and state.is_world_process_zero:
            print(self.monitor.close(), file=sys.stderr)
