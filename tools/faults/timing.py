"""What is measured on the way, in seconds of the processor: what others do on the machine does not count."""

from __future__ import annotations

import time
from pathlib import Path

from tools.faults.jobs import train
from tools.faults.ledger import Ledger, Timing

from normlab.experiments.runs.folder import read_summary
from normlab.training import checkpoint
from normlab.training.record import Log, read_log

LINES = 100_000


def all_of_them(ledger: Ledger, home: Path) -> None:
    folder = home / "long"
    train(folder)
    open_and_check(folder, ledger)


def open_and_check(folder: Path, ledger: Ledger) -> None:
    """A log of 100,000 lines: its digest is checked, its records are read, and the newest checkpoint is found whole."""
    log = Log(folder / "log.jsonl")
    log.cut(0)
    log.open()
    for step in range(LINES):
        log.write(
            {"kind": "train", "step": step, "loss": 2.5 - 1e-5 * step, "grad_norm": 1.0, "lr": 1e-3, "seconds": 0.01}
        )
    mark = log.sync()
    log.close()
    start = time.process_time()
    Log(folder / "log.jsonl").check(mark)
    checked = time.process_time()
    records = read_log(folder / "log.jsonl")
    read_summary(folder)
    checkpoint.latest(folder / "checkpoint")
    end = time.process_time()
    assert len(records) == LINES
    size = f"{mark.size / 1e6:.0f} MB"
    ledger.add(Timing(f"the digest of a log of {LINES:,} lines", checked - start, size))
    ledger.add(Timing(f"opening and checking a run of {LINES:,} log lines", end - start, size))
