"""Cells of an experiment on this machine: one single-threaded worker process per core, progress from their logs."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from normlab.experiments.run import RunConfig, build, run, run_stacked
from normlab.report.terminal import progress
from normlab.training.ensemble import choose
from normlab.training.record import read_log


@dataclass(frozen=True)
class Job:
    """One cell, or cells that differ in their seed only and are small enough to be trained as one program."""

    names: tuple[str, ...]
    how: Literal["stacked", "separate"]
    why: str


def plan(cells: Mapping[str, RunConfig]) -> list[Job]:
    """Which cells are stacked and which run apart, and why."""
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
    count = min(workers or os.cpu_count() or 1, len(todo))
    if not quiet and todo:
        for line in sorted({f"{job.how}, since {job.why}" for job in todo}):
            print(f"{sum(f'{j.how}, since {j.why}' == line for j in todo)} jobs {line}", file=sys.stderr)
    if count > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
            futures = {job: pool.submit(_run_job, job, dict(cells), folder, device, True) for job in todo}
            total = sum(cells[job.names[0]].train.steps for job in todo)
            try:
                for _ in progress(_ticks(futures, cells, folder), what="steps", total=total, quiet=quiet):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            for future in futures.values():
                future.result()
    else:
        for job in todo:
            _run_job(job, cells, folder, device, quiet)
    how = {name: job.how for job in jobs for name in job.names}
    return {
        name: {**run(config, folder / name, device=device, quiet=True), "how": how[name]}
        for name, config in cells.items()
    }


def _run_job(job: Job, cells: Mapping[str, RunConfig], folder: Path, device: str, quiet: bool) -> None:
    if job.how == "stacked":
        run_stacked({name: cells[name] for name in job.names}, folder, device=device, quiet=quiet)
    else:
        run(cells[job.names[0]], folder / job.names[0], device=device, quiet=quiet)


def _ticks(futures: Mapping[Job, Future[Any]], cells: Mapping[str, RunConfig], folder: Path) -> Iterator[None]:
    """One tick for each step that the logs show; a finished job counts as all of its steps. An error ends it."""
    shown = 0
    while True:
        done, left = wait(futures.values(), timeout=0.5)
        for future in done:
            future.result()
        reached = sum(
            cells[job.names[0]].train.steps if future.done() else _last_step(folder / job.names[0] / "log.jsonl")
            for job, future in futures.items()
        )
        for _ in range(reached - shown):
            yield
        shown = max(shown, reached)
        if not left:
            return


def _last_step(path: Path) -> int:
    try:
        records = read_log(path, "train")
    except OSError:
        return 0
    return records[-1]["step"] if records else 0


def _begin(parent: int) -> None:
    """In a worker: one thread, and no life of its own once the parent is gone (a `kill -9` reaches only the parent)."""
    import torch

    torch.set_num_threads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
