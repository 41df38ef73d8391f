"""Many runs on this machine: those that differ in their seed only may be trained as one program; the rest on executors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from normlab.experiments.executors import LocalExecutor, cores
from normlab.experiments.folder import last_step
from normlab.experiments.run import RunConfig, build, prepare, prepare_stack, run, run_folder
from normlab.experiments.sweep import SweepError
from normlab.report.terminal import meter
from normlab.training.ensemble import choose


@dataclass(frozen=True)
class Job:
    """One run, or runs that differ in their seed only and are small enough to be trained as one program."""

    names: tuple[str, ...]
    how: Literal["stacked", "separate"]
    why: str


def plan(cells: Mapping[str, RunConfig]) -> list[Job]:
    """Which runs are stacked and which run apart, and why."""
    groups: dict[str, list[str]] = {}
    for name, config in cells.items():
        seedless = config.replace(train=config.train.replace(seed=0))
        groups.setdefault(seedless.to_json(), []).append(name)
    jobs = []
    for names in groups.values():
        first = cells[names[0]]
        choice = choose([build(first)] * len(names), first.train)
        together = (choice.members or len(names)) if choice.how == "stacked" else 1
        parts = [tuple(names[i : i + together]) for i in range(0, len(names), together)]
        jobs += [Job(part, choice.how, choice.why) for part in parts]
    return jobs


def run_cells(
    cells: Mapping[str, RunConfig],
    folder: Path,
    *,
    workers: int | None = None,
    device: str = "cpu",
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Run every cell in `folder/<name>` and return the summaries by name. Cells that are finished are only read."""
    jobs = plan(cells)
    todo = [job for job in jobs if not all((folder / name / "summary.json").exists() for name in job.names)]
    if not quiet and todo:
        for line in sorted({f"{job.how}, since {job.why}" for job in todo}):
            print(f"{sum(f'{j.how}, since {j.why}' == line for j in todo)} jobs {line}", file=sys.stderr)
    places = {_prepare(job, cells, folder): job for job in todo}
    steps = {place: cells[job.names[0]].train.steps for place, job in places.items()}
    count = min(workers or cores(), len(todo))

    def done() -> float:
        logs = {place: folder / job.names[0] for place, job in places.items()}
        return sum(
            steps[p] if (log / "summary.json").exists() else min(last_step(log), steps[p]) for p, log in logs.items()
        )

    with meter(what="steps", total=sum(steps.values()), done=done, quiet=quiet or not todo):
        if count > 1:
            _apart(list(places), count, device)
        else:
            for place in places:
                run_folder(place, device=device)
    how = {name: job.how for job in jobs for name in job.names}
    return {
        name: {**run(config, folder / name, device=device, quiet=True), "how": how[name]}
        for name, config in cells.items()
    }


def _prepare(job: Job, cells: Mapping[str, RunConfig], folder: Path) -> Path:
    if job.how == "stacked":
        return prepare_stack({name: cells[name] for name in job.names}, folder)
    return prepare(folder / job.names[0], cells[job.names[0]])


def _apart(places: list[Path], workers: int, device: str) -> None:
    with LocalExecutor(workers=workers, device=device) as local:
        failed = [outcome for outcome in local.run(places) if outcome.error is not None]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise SweepError(
            f"the run in {str(failed[0].folder)!r}{more} could not be made: {failed[0].error}. What is finished stays; run "
            "the same command again to continue"
        )
