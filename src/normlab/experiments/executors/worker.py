"""The process at the other end of `LocalExecutor`: reads folders on stdin, answers on stdout, a line each.

A folder is that of a run or of a stack of runs; what it holds says which.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from normlab.errors import NormlabError
from normlab.experiments.executors.protocol import Answer
from normlab.experiments.runs.trainer import run_folder
from normlab.plugins import import_modules

ORPHAN_SECONDS = 30.0


def attempt(folder: str, *, threads: int, device: str = "cpu", imports: Sequence[str] = ()) -> Answer:
    """Run what the folder holds. `imports` are the driver's, never what the folder names."""
    try:
        import_modules(imports)
        run_folder(folder, threads=threads, device=device)
    except NormlabError as error:
        return Answer(str(error))
    except Exception as error:  # whatever it was, the sweep goes on and the sentence is kept
        return Answer(f"{type(error).__name__}: {error}", final=False)
    return Answer()


def main() -> None:
    threads, device, driver, imports = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not look like an answer
    threading.Thread(target=_leave_with, args=(driver,), daemon=True).start()
    try:
        for line in sys.stdin:
            answer = attempt(json.loads(line), threads=threads, device=device, imports=imports)
            print(answer.to_line(), file=answers, flush=True)
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
