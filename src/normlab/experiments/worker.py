"""The process at the other end of `LocalExecutor`: reads folders on stdin, answers on stdout, a line each.

A folder is that of a cell, of a run, or of a stack of runs; what it holds says which.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from normlab.errors import NormlabError
from normlab.experiments.cell import run_cell
from normlab.experiments.run import is_run, run_folder

ORPHAN_SECONDS = 30.0


def attempt(folder: str, *, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Run what the folder holds. `final` says that trying again cannot help."""
    try:
        if is_run(Path(folder)):
            torch.set_num_threads(threads)
            run_folder(Path(folder), device=device)
        else:
            run_cell(folder, threads=threads, device=device)
    except NormlabError as error:
        return {"error": str(error), "final": True}
    except Exception as error:  # whatever it was, the sweep goes on and the sentence is kept
        return {"error": f"{type(error).__name__}: {error}", "final": False}
    return {"error": None, "final": True}


def main() -> None:
    threads, device, driver = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not look like an answer
    threading.Thread(target=_leave_with, args=(driver,), daemon=True).start()
    try:
        for line in sys.stdin:
            print(json.dumps(attempt(line.strip(), threads=threads, device=device)), file=answers, flush=True)
    except KeyboardInterrupt:  # the loop saved its checkpoint first
        pass
    except BrokenPipeError:
        pass


def _leave_with(parent: int) -> None:
    """When the driver is gone, however it went, save and stop: its successor will want the cell.

    The driver gives its own number: it may have gone while this process was still importing.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
