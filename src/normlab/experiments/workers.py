"""Cells of an experiment on this machine: one single-threaded worker process per core, progress from their logs."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from normlab.experiments.run import RunConfig, run
from normlab.report.terminal import progress
from normlab.training.record import read_log


def run_cells(
    cells: Mapping[str, RunConfig],
    folder: Path,
    *,
    workers: int | None = None,
    device: str = "cpu",
    quiet: bool = False,
) -> dict[str, dict[str, Any]]:
    """Run every cell in `folder/<name>` and return the summaries by name. Cells that are finished are only read."""
    todo = [name for name in cells if not (folder / name / "summary.json").exists()]
    count = min(workers or os.cpu_count() or 1, len(todo))
    if count > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
            futures = {name: pool.submit(run, cells[name], folder / name, device=device, quiet=True) for name in todo}
            steps = {name: cells[name].train.steps for name in todo}
            try:
                for _ in progress(_ticks(futures, steps, folder), what="steps", total=sum(steps.values()), quiet=quiet):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            for future in futures.values():
                future.result()
    else:
        for name in todo:
            run(cells[name], folder / name, device=device, quiet=quiet)
    return {name: run(config, folder / name, device=device, quiet=True) for name, config in cells.items()}


def _ticks(futures: Mapping[str, Future[Any]], steps: Mapping[str, int], folder: Path) -> Iterator[None]:
    """One tick for each step that the logs show; a finished cell counts as all of its steps. An error ends it."""
    shown = 0
    while True:
        done, left = wait(futures.values(), timeout=0.5)
        for future in done:
            future.result()
        reached = sum(
            steps[name] if future.done() else _last_step(folder / name / "log.jsonl") if future.running() else 0
            for name, future in futures.items()
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
