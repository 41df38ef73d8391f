"""python -m tools.faults [--kills N] [--cases N] [--minutes M]: the table, and exit code 1 where anything was lost.

Every trial is written to a ledger as it ends; the same command goes on where it stopped. A trial is made again by its row,
number and seed, which the ledger has.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tools.faults import processes, timing
from tools.faults.campaign import FAULTS, Blow, Ground
from tools.faults.fuzz import TARGETS, fuzz
from tools.faults.jobs import JOBS, Job
from tools.faults.ledger import Ledger, Trial

ROUNDS = 25  # each row gets a part of its trials in each, so that a campaign that is stopped has tried all
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
MARKS = ("<!-- campaign -->", "<!-- end of campaign -->")


@dataclass
class Row:
    """A kind of fault, how often it shall strike, and what strikes: `blow(chance)`."""

    name: str
    goal: int
    blow: Callable[[random.Random], Blow]


def main(words: list[str] | None = None) -> int:
    asked = options(words)
    torch.set_num_threads(1)
    ledger = Ledger(asked.ledger)
    if not asked.table:
        until = time.monotonic() + 60 * asked.minutes
        with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as home:
            timing.all_of_them(ledger, Path(home))
            for rows in stages(asked, Path(home)):
                campaign([row for row in rows if asked.rows in row.name], ledger, seed=asked.seed, until=until)
    for path in asked.more:
        more = Ledger(path)
        ledger.trials += more.trials
        ledger.timings += more.timings
    print(ledger.table())
    print(ledger.measured())
    if asked.write:
        write_page(ledger)
    for row in ledger.rows:
        for fault in ledger.tally(row).lost[:3]:
            print(f"\n{row}: {fault}", file=sys.stderr)
    return int(any(trial.fault for trial in ledger.trials))


def options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=10_000, help="fuzzed inputs")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ledger", type=Path, default=Path("build/faults.jsonl"), help="where trials are kept")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="with --table: other ledgers to be added")
    parser.add_argument("--part", choices=("forks", "processes", "fuzz"), help="only this (default: all)")
    parser.add_argument("--rows", default="", help="only those whose name holds this, for example swap")
    parser.add_argument("--table", action="store_true", help="only print what the ledger has")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    return parser.parse_args(words)


def stages(asked: argparse.Namespace, home: Path) -> Iterator[list[Row]]:
    """Forks of this process, processes of their own, and fuzzed input, one after the other."""
    if asked.part in (None, "forks"):
        grounds: dict[str, Ground] = {}
        try:
            yield [row for job in JOBS for row in forks(job, grounds, asked.kills)]
        finally:
            for ground in grounds.values():
                ground.close()
    if asked.part in (None, "processes"):
        with processes.Yard(home) as yard:
            yield [
                Row(name, max(1, round(share * asked.kills)), partial(trial, yard))
                for name, (trial, share) in processes.faults().items()
            ]
    if asked.part in (None, "fuzz"):
        yield [fuzzed(name, round(asked.cases * share), home) for name, (*_, share) in TARGETS.items()]


def forks(job: Job, grounds: dict[str, Ground], kills: int) -> Iterator[Row]:
    def blow(chance: random.Random, trial: Callable[[Ground], Blow]) -> Blow:
        if job.name not in grounds:
            grounds[job.name] = Ground(job)
        grounds[job.name].chance = chance
        return trial(grounds[job.name])

    for name, (trial, share) in FAULTS.items():
        yield Row(f"{job.name}: {name}", max(2, round(kills * job.share * share)), partial(blow, trial=trial))


def fuzzed(name: str, goal: int, home: Path) -> Row:
    portion = max(10, goal // 5)

    def blow(chance: random.Random) -> Blow:
        return Blow(portion, fuzz(name, portion, home, seed=chance.randrange(2**32)))

    return Row(f"fuzzed {name}", max(10, goal), blow)


def campaign(rows: list[Row], ledger: Ledger, *, seed: int, until: float) -> None:
    """In rounds, until every row has reached its goal or the time is over."""
    commit = _commit()
    for part in range(1, ROUNDS + 1):
        for row in rows:
            idle = 0
            while ledger.tally(row.name).tried < row.goal * part / ROUNDS and idle < 20:
                if time.monotonic() > until:
                    return
                number = ledger.next_number(row.name, seed)
                blow = row.blow(random.Random(f"{seed} {row.name} {number}"))
                # A trial in which no blow fell counts only where something is wrong all the same.
                tried = max(blow.tried, int(blow.fault is not None))
                idle = 0 if tried else idle + 1
                ledger.add(Trial(row.name, tried, blow.fault, number, seed, commit))


def write_page(ledger: Ledger) -> None:
    before, rest = PAGE.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{ledger.table()}\n\n{ledger.measured()}\n{MARKS[1]}{after}")


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
