"""The smallest cells that still train."""

from normlab.experiments.cell import CellConfig, MeasureConfig, run_cell
from normlab.experiments.sweep import Outcome
from normlab.model import TransformerConfig
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig


def tiny(scheme="pre_norm", *, steps=8, depth=2, seed=0, lr=3e-3, **changes):
    job = task("tomita", number=4)
    train = {
        "steps": steps, "batch": 4, "length": 8, "seed": seed, "lr": lr, "log_every": 1, "checkpoint_every": 3,
        "schedule": Schedule(kind="wsd", warmup=min(2, steps), decay=0.5), **changes.pop("train", {}),
    }  # fmt: skip
    measure = MeasureConfig(validations=4, curve_sequences=8, sequences=8, layer_sequences=2)
    model = TransformerConfig(vocab_size=job.vocab_size, dim=16, depth=depth, heads=2, scheme=scheme)
    return CellConfig(model=model, task=job, train=TrainConfig(**train), measure=measure, **changes)


class Here:
    """An executor in this process, for speed; test_executors has the real ones."""

    name, workers = "here", 1

    def run(self, folders):
        for folder in folders:
            run_cell(folder)
            yield Outcome(folder)
