"""The smallest runs that still train."""

from normlab.experiments.executors.protocol import Outcome
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import run_folder
from normlab.experiments.sweep import Sweep
from normlab.model import TransformerConfig
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig


def tiny(scheme="pre_norm", *, steps=8, depth=2, seed=0, lr=3e-3, **changes):
    job = task("tomita", number=4)
    train = {
        "steps": steps, "batch": 4, "length": 8, "seed": seed, "lr": lr, "log_every": 1, "checkpoint_every": 3,
        "schedule": Schedule(kind="wsd", warmup=min(2, steps), decay=0.5), **changes.pop("train", {}),
    }  # fmt: skip
    score = HeldOut(validations=4, curve_sequences=8, sequences=8, layer_sequences=2)
    model = TransformerConfig(vocab_size=job.vocab_size, dim=16, depth=depth, heads=2, scheme=scheme)
    return RunConfig(model=model, task=job, train=TrainConfig(**train), score=score, **changes)


def alone(folder, **options):
    """The one run of a folder, trained here."""
    (run,) = run_folder(folder, **options)
    return run


class Here:
    """An executor in this process, for speed; executors/ has tests of the real ones."""

    name, device, at_once = "here", "cpu", 1

    def run(self, folders):
        for folder in folders:
            run_folder(folder)
            yield Outcome(folder)


def sweep_of(folder, executor=None):
    return Sweep(folder, executor or Here(), quiet=True)
