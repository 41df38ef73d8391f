"""The three stages. Each leaves its own page or runs in the folder of the demo, and says what it found as a type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from normlab.errors import InputError, NormlabError
from normlab.experiments.atlas import page as atlas_page
from normlab.experiments.atlas.measure import Atlas, measure
from normlab.experiments.atlas.request import AtlasRequest
from normlab.experiments.compare.arms import Arm
from normlab.experiments.compare.experiment import EXPERIMENT, run_of
from normlab.experiments.compare.request import CompareRequest
from normlab.experiments.demo.live import Watched, arm_name, watching
from normlab.experiments.demo.settings import WARMUPS, Fault
from normlab.experiments.executors.names import executor as by_name
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import last_step, load
from normlab.experiments.runs.measured import context_free
from normlab.experiments.runs.tail import LogTail
from normlab.experiments.shapes import run_name
from normlab.experiments.sweep import Sweep, read_request
from normlab.files import write_json
from normlab.model import Transformer
from normlab.probes.diagnose import diagnose
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.inputs.runs import load_run
from normlab.probes.show.page import build as page_of_diagnosis
from normlab.report import print_page, write_page
from normlab.schemes.names import label
from normlab.tasks import Text

PROMPT = "\nKING"
WRITTEN = 90  # characters that a trained model is asked for


@dataclass(frozen=True)
class Trained:
    """A run of the second stage, as far as it came."""

    folder: Path
    config: RunConfig
    log: LogTail
    floor: float | None
    """What no model that ignores the context can beat on the held-out text."""
    written: str = ""

    @property
    def scheme(self) -> str:
        return label(self.config.model.scheme)

    @property
    def warmup(self) -> int:
        """Steps."""
        return self.config.train.schedule.warmup

    @property
    def name(self) -> str:
        return arm_name(self.scheme, self.warmup)

    @property
    def whole(self) -> bool:
        """Not stopped before its end."""
        return bool(self.log.training) and self.log.training[-1].step >= self.config.train.steps

    @property
    def loss(self) -> float | None:
        return self.log.validation[-1].loss if self.log.validation else None

    @property
    def learned(self) -> bool:
        """More than how frequent each character is."""
        return self.loss is not None and self.floor is not None and self.loss < self.floor - 0.1


@dataclass(frozen=True)
class Planted:
    """A trained model before and after one of its norm gains was multiplied."""

    fault: Fault
    before: Diagnosis
    after: Diagnosis

    @property
    def found(self) -> bool:
        """Does the first warning name the layer, and that layer alone?"""
        warnings = [verdict for verdict in self.after.verdicts if verdict.severity != "note"]
        return bool(warnings) and warnings[0].layers == (self.fault.layer,)


def look_at_all(request: AtlasRequest, out: Path, *, quiet: bool) -> Atlas:
    """Stage 1: every scheme before training. The page is on disk when this returns."""
    atlas = measure(request, quiet=quiet)
    write_json(out / "atlas.json", atlas.rows())
    page = write_page(atlas_page.build(atlas), out / "atlas.html")
    if not quiet:
        atlas_page.show(atlas)
        print_page(page)
    return atlas


def arms(request: CompareRequest, steps: int) -> dict[str, RunConfig]:
    """The runs by the names of their folders: each scheme without a warm-up and with one, all else equal."""
    (depth,), (lr,) = request.depths, request.lrs
    return {
        run_name(scheme, depth, lr, 0) + ("-warmup" if share else ""): run_of(
            request.replace(warmup=share), Arm(scheme, depth), lr=lr, seed=0, steps=steps
        )
        for scheme in request.schemes
        for share in WARMUPS
    }


def train_arms(request: CompareRequest, out: Path, *, workers: int, quiet: bool) -> None:
    """Stage 2: the arms side by side, watched while they learn. What is finished is not made again."""
    folder = training_folder(request, out)
    with by_name("local", workers=workers) as executor:
        sweep = Sweep(folder, executor, quiet=True)
        EXPERIMENT.check(request)
        settled = sweep.settle(request, lambda: EXPERIMENT.settle(request, executor))
        runs = arms(request, settled["steps"])
        followed = [
            Watched(label(config.model.scheme), folder / name, config.train.steps, config.train.schedule.warmup)
            for name, config in runs.items()
        ]
        with watching(followed, quiet=quiet):
            sweep.run(runs, what="training")
        sweep.check()


def training_folder(request: CompareRequest, out: Path) -> Path:
    """`training`, or the next free name where an older demo left another sweep there."""
    number = 1
    while True:
        folder = out / ("training" if number == 1 else f"training-{number}")
        try:
            if not (folder / "sweep.json").exists() or read_request(folder, CompareRequest) == request:
                return folder
        except NormlabError:  # damaged, or of another version: it stays as it is
            pass
        number += 1


def trained(request: CompareRequest, out: Path) -> tuple[Trained, ...]:
    """What the second stage left, finished or not."""
    folder = training_folder(request, out)
    found = []
    for place in (folder / name for name in arms(request, steps=1)):
        if not (place / "config.yaml").exists() or last_step(place) == 0:
            continue
        tail = LogTail(place / "log.jsonl")
        tail.read()
        found.append(Trained(place, load(place), tail, context_free(load(place)), _written(place)))
    return tuple(found)


def _written(place: Path) -> str:
    """What the model writes after a prompt; nothing where no checkpoint was saved yet."""
    task = load(place).task
    if not isinstance(task, Text):
        return ""
    try:
        model = load_run(str(place)).model
    except InputError:
        return ""
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(0)
    prompt = task.encode(PROMPT)[None]
    with torch.no_grad():
        tokens = model.generate(prompt, max_new_tokens=WRITTEN, temperature=0.7, generator=generator)
    return task.decode(tokens[0]).strip()


def plant_and_find(fault: Fault, runs: tuple[Trained, ...], out: Path) -> Planted | None:
    """Stage 3: diagnose a trained model, multiply one norm gain, diagnose it again. None where none was trained."""
    run = next((run for run in runs if run.scheme == fault.scheme and run.learned), None)
    run = run or next((run for run in runs if run.learned), None)
    if run is None:
        return None
    try:
        model = load_run(str(run.folder)).model
    except InputError:  # stopped before its first checkpoint
        return None
    assert isinstance(model, Transformer)
    length = run.config.train.length  # beyond it, context that was never trained on hurts a healthy model
    tokens = run.config.task.held_out().sample(32, length, torch.Generator().manual_seed(0)).tokens
    before = diagnose(model, [tokens], name=run.scheme)
    plant(model, fault)
    after = diagnose(model, [tokens], name=f"{run.scheme} with a planted fault")
    write_page(page_of_diagnosis([after]), out / "diagnosis.html")
    return Planted(fault, before, after)


def plant(model: Transformer, fault: Fault) -> None:
    """The norm in front of the attention of one layer."""
    site = next(site for site in model.sites if site.layer == fault.layer + 1)
    gain = getattr(model.scheme.pre[site.index], "weight", None)
    if not isinstance(gain, torch.Tensor):
        raise InputError(f"layer {fault.layer} has no norm gain in front of its attention")
    with torch.no_grad():
        gain.mul_(fault.factor)
