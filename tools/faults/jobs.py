"""What is interrupted: the smallest training run, the smallest sweep of each kind, operations on the smallest model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.faults import surgery

from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.executors.protocol import Outcome
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.protocol import experiment
from normlab.experiments.request import Request
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import prepare, read_summary
from normlab.experiments.runs.score import HeldOut
from normlab.experiments.runs.trainer import run_folder
from normlab.experiments.stability.request import StabilityRequest
from normlab.experiments.sweep import Sweep
from normlab.model import TransformerConfig
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig
from normlab.training.record import Log, LogMark, read_log

SAME = ("status", "step", "loss", "grad_norm", "lr", "weights", "validation", "tokens")
"""Of a summary: what does not tell the time."""
MEASURED = ("train", "validation", "layers", "evaluation", "end")


@dataclass(frozen=True)
class Job:
    """`run(folder)` begins the work, or goes on with it. `share` of the kills are for it: small runs are quick.

    `found(folder)` is what it has to show. With `before`, which puts something older in its place, the work is one piece:
    after a blow there is the old, the new or nothing.
    """

    name: str
    run: Callable[[Path], object]
    share: float
    found: Callable[[Path], dict[str, object]]
    before: Callable[[Path], None] | None = None


class Here:
    """Runs one after the other, in this process: a strike hits all of it."""

    name, device, at_once = "here", "cpu", 1

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]:
        for folder in folders:
            run_folder(folder)
            yield Outcome(folder)

    def close(self) -> None: ...

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None: ...


def config(*, steps: int, seed: int) -> RunConfig:
    """The smallest run that logs every step, saves every third, and has something random in it."""
    job = task("tomita", number=4)
    train = TrainConfig(
        steps=steps,
        batch=2,
        length=6,
        lr=3e-3,
        seed=seed,
        log_every=1,
        checkpoint_every=3,
        evaluate_every=4,
        schedule=Schedule(warmup=2),
    )
    score = HeldOut(validations=3, curve_sequences=2, sequences=2, layer_sequences=1, prune=False)
    model = TransformerConfig(vocab_size=job.vocab_size, dim=8, depth=1, heads=2, dropout=0.1)
    return RunConfig(model=model, task=job, train=train, score=score)


def train(folder: Path) -> None:
    prepare(folder, config(steps=12, seed=0))
    run_folder(folder)


def _sweep(request: Request) -> Callable[[Path], object]:
    return lambda folder: experiment(request.kind).carry_out(request, Sweep(folder, Here(), quiet=True))


SMALL = {"depths": (1,), "dim": 8, "heads": 2, "batch": 2, "length": 6, "task": task("tomita", number=4)}
COMPARE = CompareRequest(schemes=("pre_norm", "post_norm"), tokens=96, seeds=1, lrs=(1e-3,), **SMALL)
STABILITY = StabilityRequest(schemes=("pre_norm",), steps=20, warmups=(0,), lrs=(1e-3, 1e3), factor=1e9, **SMALL)
LENGTHGEN = LengthgenRequest(
    schemes=("post_norm",), steps=20, batch=2, seeds=2, train_length=4, test_lengths=(4, 6), test_count=4
)


def found(folder: Path) -> dict[str, object]:
    """Every number that the runs below this folder have recorded. Raises where a file is not as it was written."""
    result: dict[str, object] = {}
    for path in sorted(folder.rglob("summary.json")):
        place = path.parent
        summary = read_summary(place) or {}
        Log(place / "log.jsonl").check(LogMark.from_dict(summary["log"]))
        records = [r for r in read_log(place / "log.jsonl") if r.get("kind") in MEASURED]
        for record in records:
            record.pop("seconds", None)
        name = str(place.relative_to(folder))
        result[name] = {"summary": {key: summary.get(key) for key in SAME}, "log": records}
    return result


# One row a job: whatever can be interrupted and has something to show.
JOBS = (
    Job("train", train, 0.62, found),
    Job("lengthgen", _sweep(LENGTHGEN), 0.14, found),
    Job("compare", _sweep(COMPARE), 0.06, found),
    Job("stability", _sweep(STABILITY), 0.06, found),
    Job("swap", surgery.operation("swap"), 0.08, surgery.files, surgery.before),
    Job("prune", surgery.operation("prune"), 0.02, surgery.files, surgery.before),
    Job("train FOLDER", surgery.operation("train FOLDER"), 0.02, surgery.files, surgery.before),
)
