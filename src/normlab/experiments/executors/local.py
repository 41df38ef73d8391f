"""Local processes: one worker a core, single-threaded, fed with cells; a dead worker is replaced and its cell goes on.

Spinning OpenMP threads ruin two cells on two cores: threads are capped and wait passively. Workers live through many
cells, because importing torch takes longer than a small cell. They write to the cells' folders only; what goes through
the pipes is a folder's name and how it ended.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from normlab.errors import ConfigError
from normlab.experiments.executors.protocol import Answer, Outcome, cores
from normlab.files import LIMITS
from normlab.plugins import Imported
from normlab.store import last_beat

SILENCE = LIMITS.silent_seconds
GRACE = 20.0  # seconds for a worker to save its checkpoint when it is asked to stop


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    errors: IO[str]
    folder: Path | None = None
    given: float = 0.0  # when, in seconds since 1970
    hung: bool = False


@dataclass
class _Job:
    folder: Path
    attempts: int = 0


@dataclass
class LocalExecutor:
    """`workers` processes with `threads` each; a cell whose process dies or fails in a way not foreseen is retried.

    A sentence of ours (bad input: a data file that vanished) is final: the same input would fail again. A run that leaves
    no sign of progress for `silence` seconds is taken to hang: its process is ended, and the run retried.
    """

    workers: int = 0  # 0: one for each `threads` cores
    threads: int = 1
    retries: int = 2
    device: str = "cpu"
    silence: float = SILENCE
    imports: Sequence[Imported] = ()
    name: str = "local"
    _pool: list[_Worker] = field(default_factory=list, repr=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, repr=False)

    def __post_init__(self) -> None:
        if self.workers < 0 or self.threads < 1 or self.retries < 0:
            raise ConfigError(
                f"workers >= 0, threads >= 1 and retries >= 0 are needed, but got {self.workers}, {self.threads} and "
                f"{self.retries}"
            )
        self.workers = self.workers or max(1, cores() // self.threads)

    @property
    def at_once(self) -> int:
        """Cells that gain nothing from one more: on the CPU, more workers than cores share them."""
        return min(self.workers, max(1, cores() // self.threads)) if self.device == "cpu" else self.workers

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]:
        waiting = deque(_Job(Path(folder)) for folder in folders)
        running: dict[int, _Job] = {}
        ended = False
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    worker = self._idle() or self._start()
                    job = waiting.popleft()
                    running[worker.process.pid] = job
                    self._send(worker, job.folder)
                self._end_hung()
                for key, _ in self._selector.select(timeout=1.0):
                    answer = self._answer(key.data)
                    job_done = running.pop(key.data.process.pid, None)
                    if job_done is None:  # an idle worker died
                        continue
                    job_done.attempts += 1
                    if answer.error is None:
                        yield Outcome(job_done.folder)
                    elif answer.final or job_done.attempts > self.retries:
                        yield Outcome(job_done.folder, answer.error)
                    else:
                        waiting.append(job_done)
            ended = True
        finally:
            if not ended:  # interrupted: nobody will ask for these workers again
                self.close()

    def _end_hung(self) -> None:
        for worker in self._pool:
            if worker.folder is None or worker.hung:
                continue
            if time.time() - max(worker.given, last_beat(worker.folder) or 0.0) > self.silence:
                worker.hung = True
                worker.process.kill()  # its closed stdout says so to the selector

    def _answer(self, worker: _Worker) -> Answer:
        line = worker.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            return Answer(self._bury(worker), final=False)
        worker.folder = None
        return Answer.from_line(line)

    def _idle(self) -> _Worker | None:
        return next((w for w in self._pool if w.folder is None and w.process.poll() is None), None)

    def _start(self) -> _Worker:
        threads, modules = str(self.threads), [imported.module for imported in self.imports]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the worker is buried
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "normlab.experiments.executors.worker",
                threads,
                self.device,
                str(os.getpid()),
                *modules,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is the driver's; it asks the workers to save and stop
        )
        worker = _Worker(process, errors)
        self._pool.append(worker)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _send(self, worker: _Worker, folder: Path) -> None:
        worker.folder, worker.given = folder, time.time()
        assert worker.process.stdin is not None
        try:
            worker.process.stdin.write(json.dumps(str(folder.resolve())) + "\n")  # a name may hold a newline
            worker.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died a moment ago: its closed stdout says so to the selector

    def _bury(self, worker: _Worker) -> str:
        """Forget a dead worker; returns how it died."""
        code = worker.process.wait()
        self._forget(worker)
        worker.errors.seek(0)
        said = worker.errors.read().strip().splitlines()
        self._close(worker)
        if worker.hung:
            return f"it made no progress for {self.silence:.0f} s and was ended"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}" + (f" after saying {said[-1]!r}" if said else "")

    def close(self) -> None:
        """End the workers: at once where they wait, after their next step and checkpoint where they train."""
        for worker in self._pool:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for worker in self._pool:
            try:
                worker.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        for worker in tuple(self._pool):
            self._forget(worker)
            self._close(worker)

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _forget(self, worker: _Worker) -> None:
        self._pool.remove(worker)
        self._selector.unregister(worker.process.stdout)  # type: ignore[arg-type]

    def _close(self, worker: _Worker) -> None:
        for pipe in (worker.process.stdin, worker.process.stdout, worker.errors):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass
