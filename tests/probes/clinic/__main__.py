"""python -m tests.probes.clinic [train] [--half NAME|known|all|none] [--backbone KIND] [--fault NAME]"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from normlab.report.terminal import finite

from . import own
from .backbones import KINDS, RUNS, ensure, ready, single_byte_loss
from .report import Clinic, text
from .runner import (
    HALVES,
    KNOWN,
    MORE_RUNS,
    Case,
    Stopwatch,
    cases,
    check_up,
    check_up_dressed,
    check_up_own,
    dressed,
    healthy,
    outcome,
)

UNFINISHED = 3
HALF = "known: those on which rules may be tuned; none: healthy models only"
Job = TypeVar("Job")
Result = TypeVar("Result")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.probes.clinic", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=("run", "train"), default="run", help="train: only make the backbones"
    )
    parser.add_argument("--half", choices=(*HALVES, "known", "all", "none"), default="all", help=HALF)
    parser.add_argument("--backbone", choices=KINDS, help="only this kind")
    parser.add_argument("--fault", help="only faults whose name contains this")
    parser.add_argument("--everywhere", action="store_true", help="each fault in every backbone it applies to")
    parser.add_argument(
        "--no-healthy", action="store_true", help="do not examine healthy models of other ages and sizes"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout, and nothing else there")
    parser.add_argument("--max-seconds", type=float, help=f"stop then with exit code {UNFINISHED}; run again to go on")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    watch = Stopwatch(chosen.max_seconds)
    if chosen.what == "train":
        return _train(chosen.backbone, watch)
    halves = {"all": tuple(HALVES), "known": KNOWN, "none": ()}.get(chosen.half, (chosen.half,))
    todo = {
        half: [case for case in cases(half, everywhere=chosen.everywhere) if _wanted(case, chosen)] for half in halves
    }
    whole = not (chosen.no_healthy or chosen.fault)
    more = [run for half in halves for run in MORE_RUNS.get(half, ())]
    runs = [run for run in (*RUNS, *more) if whole and chosen.backbone in (None, run.kind)]
    ages = list(healthy(runs))
    clothes = [item for item in dressed(halves) if whole and chosen.backbone in (None, item.backbone.kind)]
    work = Work(total=sum(map(len, todo.values())) + len(ages) + len(clothes), watch=watch)
    ours = list(own.everyone()) if whole and chosen.backbone is None else []
    work.total += len(ours)
    checkups = (*work.each(check_up, ages), *work.each(check_up_dressed, clothes))
    of_ours = tuple(work.each(check_up_own, ours))
    clinic = Clinic({half: tuple(work.each(outcome, found)) for half, found in todo.items()}, checkups, of_ours)
    if work.done < work.total:
        print(f"stopped: {work.done} of {work.total} exams are done and cached; run again to go on", file=sys.stderr)
        return UNFINISHED
    print(json.dumps(finite(clinic.to_dict())) if chosen.json else text(clinic))
    return 0


@dataclass
class Work:
    """Counts exams, tells how far it is, and stops in time."""

    total: int
    watch: Stopwatch
    done: int = 0

    def each(self, examine: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            if self.watch.over:
                return
            yield examine(job)
            self.done += 1
            if self.done % 20 == 0:
                print(f"{self.done} of {self.total}", file=sys.stderr, flush=True)


def _wanted(case: Case, chosen: argparse.Namespace) -> bool:
    return chosen.backbone in (None, case.backbone.kind) and (chosen.fault or "").lower() in case.fault.name.lower()


def _train(kind: str | None, watch: Stopwatch) -> int:
    print(f"single bytes: {single_byte_loss():.3f} nats", flush=True)
    for run in RUNS:
        if kind not in (None, run.kind):
            continue
        if watch.over and not ready(run):
            print("stopped; run again to go on", file=sys.stderr)
            return UNFINISHED
        losses = ensure(run)
        print(f"{run.name:20} " + "  ".join(f"{age}: {loss:.2f}" for age, loss in losses.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
