"""Runs that differ in seed and learning rate only, as one program; each leaves in its folder what it would alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from normlab.errors import InputError
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import PATIENCE, STACK, is_stack, load, locked, prepare, read_summary
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.score import ByLength
from normlab.experiments.runs.scoring import score
from normlab.files import write_json
from normlab.training.ensemble import Ensemble, choose


@dataclass(frozen=True)
class Job:
    """One run, or runs that are small enough to be one program. `folder` is what a worker is given."""

    names: tuple[str, ...]
    how: Literal["stacked", "separate"]
    why: str = ""
    """Where there was a choice."""

    def folder(self, sweep: Path) -> Path:
        first = sweep / self.names[0]
        return first / "stacked" if self.how == "stacked" else first


def plan(wanted: Mapping[str, RunConfig], sweep: Path) -> list[Job]:
    """Which of these runs are stacked and which run apart, and why. Stacks that an earlier command began go on."""
    begun = [names for names in stacks(sweep) if set(names) & set(wanted)]
    jobs = [Job(names, "stacked", "they were begun so") for names in begun]
    taken = {name for names in begun for name in names}
    groups: dict[str, list[str]] = {}
    for name, config in wanted.items():
        if name in taken:
            continue
        if not isinstance(config.score, ByLength):
            jobs.append(Job((name,), "separate"))
            continue
        common = config.replace(train=config.train.replace(seed=0, lr=1.0))
        groups.setdefault(common.to_json(), []).append(name)
    for names in groups.values():
        first = wanted[names[0]]
        choice = choose([first.build()] * len(names), first.train)
        together = (choice.members or len(names)) if choice.how == "stacked" else 1
        parts = [tuple(names[i : i + together]) for i in range(0, len(names), together)]
        jobs += [Job(part, choice.how, choice.why) for part in parts]
    return jobs


def prepare_job(job: Job, wanted: Mapping[str, RunConfig], sweep: Path) -> Path:
    """Make the folders of a job; returns the one that a worker is given."""
    for name in job.names:
        if name in wanted:
            prepare(sweep / name, wanted[name])
    folder = job.folder(sweep)
    if job.how == "stacked" and not (folder / STACK).exists():
        write_json(folder / STACK, list(job.names))
    return folder


def stacks(sweep: Path) -> list[tuple[str, ...]]:
    """The members of every stack that was begun in this folder."""
    return [_members(file) for file in sorted(sweep.glob(f"*/stacked/{STACK}"))]


def _members(file: Path) -> tuple[str, ...]:
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(file)!r} is damaged ({error}); delete the folder {str(file.parent)!r}") from None
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise InputError(
            f"{str(file)!r} is damaged: a list of runs was expected; delete the folder {str(file.parent)!r}"
        )
    return tuple(names)


def is_finished(folder: Path) -> bool:
    """Has the run in this folder, or each member of the stack there, a summary?"""
    runs = [folder.parent.parent / name for name in _members(folder / STACK)] if is_stack(folder) else [folder]
    return all(read_summary(run) is not None for run in runs)


def run_stack(folder: Path, *, device: str = "cpu", quiet: bool = True, until: int | None = None) -> list[FinishedRun]:
    """Train the members of the stack in this folder as one program, to their end or to the step `until`."""
    sweep = folder.parent.parent
    places = [sweep / name for name in _members(folder / STACK)]
    configs = [load(place) for place in places]
    with locked(folder, wait=PATIENCE):
        if any(read_run(place) is None for place in places):
            _ensemble(configs, folder, places, device=device, quiet=quiet).run(until=until)
    return [run for place in places if (run := read_run(place)) is not None]


def _ensemble(
    configs: Sequence[RunConfig], folder: Path, places: Sequence[Path], *, device: str, quiet: bool
) -> Ensemble:
    first = configs[0]
    assert isinstance(first.score, ByLength)
    lengths, count = first.score.lengths, first.score.count
    return Ensemble(
        [config.build(device=device) for config in configs],
        first.task,
        [config.train for config in configs],
        folder,
        folders=places,
        evaluate=lambda m: score(m, first.scored, lengths, count=count),
        quiet=quiet,
    )
