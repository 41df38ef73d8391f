"""Many runs on this machine: those that differ in seed and rate only may be one program; the rest on executors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from normlab.experiments.executors import LocalExecutor, cores
from normlab.experiments.folder import last_step
from normlab.experiments.run import RunConfig, build, prepare, prepare_stack, run, run_folder, stacks
from normlab.experiments.sweep import SweepError
from normlab.report.terminal import meter
from normlab.training.ensemble import choose


@dataclass(frozen=True)
class Job:
    """One run, or runs that differ in seed and learning rate only and are small enough to be one program."""

    names: tuple[str, ...]
    how: Literal["stacked", "separate"]
    why: str


def plan(cells: Mapping[str, RunConfig]) -> list[Job]:
    """Which runs are stacked and which run apart, and why."""
    groups: dict[str, list[str]] = {}
    for name, config in cells.items():
        common = config.replace(train=config.train.replace(seed=0, lr=1.0))
        groups.setdefault(common.to_json(), []).append(name)
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
    missing = [name for name in cells if not (folder / name / "summary.json").exists()]
    begun = begun_stacks(missing, folder)
    stacked = {name for job in begun for name in job.names}
    todo = [*begun, *plan({name: cells[name] for name in missing if name not in stacked})]
    if not quiet and todo:
        for line in sorted({f"{job.how}, since {job.why}" for job in todo}):
            print(f"{sum(f'{j.how}, since {j.why}' == line for j in todo)} jobs {line}", file=sys.stderr)
    known = {**{name: RunConfig.from_file(folder / name / "config.yaml") for name in stacked - set(cells)}, **cells}
    places = {_prepare(job, known, folder): job for job in todo}
    steps = {place: known[job.names[0]].train.steps for place, job in places.items()}
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
    together = {name for names in stacks(folder) for name in names}
    return {
        name: {
            **run(config, folder / name, device=device, quiet=True),
            "how": "stacked" if name in together else "separate",
        }
        for name, config in cells.items()
    }


def begun_stacks(missing: Sequence[str], folder: Path) -> list[Job]:
    """Stacks that an earlier command began: they go on as they were, though other seeds may be asked for now."""
    found = [names for names in stacks(folder) if set(names) & set(missing)]
    return [Job(names, "stacked", "they were begun so") for names in found]


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
