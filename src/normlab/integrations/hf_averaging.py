"""EMA and BEMA inside a Hugging Face `Trainer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
from torch import nn
from typing_extensions import Unpack

from normlab.errors import require
from normlab.training.averaging import BEMA, AverageOptions

if TYPE_CHECKING:
    from normlab.integrations.hf_trainer import Arguments, State

_transformers = require("transformers", extra="hf", purpose="the Hugging Face callback")


class BiasedOptions(AverageOptions, total=False):
    """What `BEMA` takes besides the model."""

    eta: float


class PreTrained(nn.Module):
    """What is used of transformers.PreTrainedModel."""

    def save_pretrained(self, save_directory: Path) -> None: ...


class BEMACallback(_transformers.TrainerCallback):  # type: ignore[name-defined, misc]
    """Averages the weights after each optimizer step and leaves EMA and BEMA beside the checkpoints.

    >>> trainer = Trainer(model, arguments, callbacks=[BEMACallback(every=400)])

    At the end of training `<output_dir>/ema` and `<output_dir>/bema` are models for `from_pretrained`. Each checkpoint
    gets `averages.safetensors`, from which a resumed run goes on. Options are those of `normlab.BEMA`.
    """

    def __init__(self, **options: Unpack[BiasedOptions]) -> None:
        self.options = options
        self.average: BEMA | None = None

    def on_train_begin(
        self, args: Arguments, state: State, control: object, *, model: PreTrained, **rest: object
    ) -> None:
        """At the first step: theta_0 and the EMA are the weights as they are; on resuming, those of the checkpoint."""
        self.average = BEMA(model, **self.options)
        self.average.step = state.global_step
        stored = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "averages.safetensors"
        if state.global_step and stored.exists():
            self.average.load_tensors(safetensors.torch.load_file(stored), state.global_step)

    def on_step_end(self, args: Arguments, state: State, control: object, **rest: object) -> None:
        """After each optimizer step."""
        assert self.average is not None
        self.average.update(state.global_step)

    def on_save(self, args: Arguments, state: State, control: object, **rest: object) -> None:
        """After each checkpoint of the Trainer."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and self.average is not None and folder.is_dir():
            tensors = {key: t.contiguous() for key, t in self.average.tensors().items()}
            safetensors.torch.save_file(tensors, folder / "averages.safetensors")

    def on_train_end(
        self, args: Arguments, state: State, control: object, *, model: PreTrained, **rest: object
    ) -> None:
        """Once: both averages as loadable models, with a note of what they are."""
        if not state.is_world_process_zero or self.average is None:
            return
        for kind in self.average.kinds:
            folder = Path(args.output_dir) / kind
            with self.average.averaged(kind):
                model.save_pretrained(folder)
            (folder / "average.json").write_text(json.dumps({"kind": kind, "step": state.global_step, **self.options}))
