"""python -m tools.faults [--kills N] [--cases N] [--minutes M]: the table, and exit code 1 where anything was lost."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from tools.faults.campaign import Ground, damaged, full, struck, together
from tools.faults.fuzz import fuzz
from tools.faults.harness import Tally
from tools.faults.jobs import JOBS

SHARES = {"train": 0.7, "lengthgen": 0.16, "compare": 0.07, "stability": 0.07}  # of the kills: small runs are quick


def main(words: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    options.add_argument("--kills", type=int, default=1000)
    options.add_argument("--cases", type=int, default=10_000, help="fuzzed inputs")
    options.add_argument("--minutes", type=float, default=60.0, help="at most, without the fuzzing")
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args(words)
    torch.set_num_threads(1)
    until, tallies = time.monotonic() + 60 * asked.minutes, []
    for job in JOBS:
        ground = Ground(job, random.Random(f"{asked.seed} {job.name}"))
        count = max(2, round(asked.kills * SHARES[job.name]))
        try:
            for name, number, trials in (
                ("kill -9", signal.SIGKILL, count),
                ("Ctrl-C", signal.SIGINT, count // 10 + 1),
                ("SIGTERM", signal.SIGTERM, count // 10 + 1),
            ):
                tallies.append(tally := Tally(f"{job.name}: {name}"))
                struck(ground, tally, number, trials=trials, until=until)
            for name, trial in (("several at once", together), ("full disk", full), ("damaged file", damaged)):
                tallies.append(tally := Tally(f"{job.name}: {name}"))
                trial(ground, tally, trials=count // 5 + 1, until=until)
        finally:
            ground.close()
    with tempfile.TemporaryDirectory() as home:
        tallies += fuzz(asked.cases, Path(home))
    print(table(tallies))
    for tally in tallies:
        for fault in tally.lost[:3]:
            print(f"\n{tally.name}: {fault}", file=sys.stderr)
    return int(any(tally.lost for tally in tallies))


def table(tallies: list[Tally]) -> str:
    """Markdown, with a last line for all."""
    kills, fuzzed = Tally("all kills"), Tally("all fuzzed")
    for tally in tallies:
        for whole, belongs in ((kills, tally.name.endswith("kill -9")), (fuzzed, tally.name.startswith("fuzzed"))):
            if belongs:
                whole.tried, whole.survived = whole.tried + tally.tried, whole.survived + tally.survived
                whole.lost += tally.lost
    rows = [(t.name, t.tried, t.survived, len(t.lost)) for t in (*tallies, kills, fuzzed)]
    lines = ["| fault | tried | survived | lost |", "|---|---:|---:|---:|"]
    return "\n".join([*lines, *(f"| {name} | {tried} | {survived} | {lost} |" for name, tried, survived, lost in rows)])


if __name__ == "__main__":
    sys.exit(main())
