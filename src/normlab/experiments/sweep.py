"""A sweep: many runs in one folder, brought to their end by an executor, continued by running it again.

    runs/<sweep>/sweep.json           what was asked (kind, request), what follows from it and the files' digests
    runs/<sweep>/<run>/               a run (see `runs.trainer`)
    runs/<sweep>/<run>/failure.json   why a run could not be made; gone when it can

A run that fails does not stop the others, and nothing that is finished is made again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import normlab
from normlab import plugins
from normlab.errors import ConfigError, InputError, NormlabError
from normlab.experiments.executors.protocol import Executor, Outcome
from normlab.experiments.request import Request
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import check_data, is_run, last_step, locked, read_summary
from normlab.experiments.runs.records import FinishedRun, read_run
from normlab.experiments.runs.stack import Job, plan, prepare_job
from normlab.files import write_json
from normlab.report.terminal import meter
from normlab.results import pick
from normlab.store import inside, read_json, read_object

FORMAT = 1
REMEDY = "restore it, or give another --out"
OLDER = {"lengthgen.json": "lengthgen"}  # what a folder without sweep.json may hold, and the experiment that wrote it
AnyRequest = TypeVar("AnyRequest", bound=Request)
Settled = Mapping[str, int]


class SweepError(NormlabError):
    """Some runs could not be made; the message says which, why, and what stays."""


@dataclass(frozen=True)
class SweepFile:
    """sweep.json. `settled` is what was decided once, such as the steps that a time budget allows here."""

    format: int
    kind: str
    request: Mapping[str, object]
    settled: Settled = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    normlab: str = ""
    external: Mapping[str, object] = field(default_factory=dict)
    """Schemes that are not built in, and the module or package of each: for error messages, nothing is imported from it."""

    def write(self, folder: Path) -> None:
        body = {"format": self.format, "kind": self.kind, "normlab": self.normlab, "request": self.request}
        beside = {"data": self.data, "external": self.external}
        write_json(
            inside(folder, "sweep.json"),
            {**body, "settled": self.settled, **{k: v for k, v in beside.items() if v}},
        )


@dataclass
class Sweep:
    """The folder of a sweep. `settle` keeps what was decided once; `run` brings runs to their end."""

    folder: Path
    executor: Executor
    quiet: bool = False
    failures: dict[str, str] = field(default_factory=dict)

    def settle(self, request: Request, decide: Callable[[], Settled] = dict) -> Settled:
        """What follows from the request: `decide()` the first time, as it is written in the folder ever after.

        A time budget is turned into steps by measuring this machine; a second run must not measure again. In the fields
        that it `grows` by, a later request may ask for more than the folder holds, in any order; never for less. The
        files behind the request must stay as they are: workers check that too, before each run.
        """
        if not (self.folder / "sweep.json").exists():
            data = request.files()
            settled = decide()
            SweepFile(
                FORMAT, request.kind, request.to_dict(), settled, data, normlab.__version__, _recorded(request)
            ).write(self.folder)
            return settled
        there = read_sweep(self.folder)
        if there.kind != request.kind:
            raise ConfigError(
                f"{str(self.folder)!r} holds another sweep, of the kind {there.kind!r}; give another --out"
            )
        was, now = _known(there, type(request)), request.to_dict()
        now |= {key: was[key] for key in request.keeps_most if key in was and _covers(was[key], now[key])}
        if was.get("start") != now.get("start"):
            raise ConfigError(
                f"the runs in {str(self.folder)!r} have the start {was.get('start')!r}, and new ones have {now['start']!r}: "
                "losses of different initialisations are not compared. `normlab report` still reads that folder; give "
                "another --out for a new comparison"
            )
        may_grow = (*request.grows, *request.keeps_most)
        changed = [key for key in was if was[key] != now[key] and not (key in may_grow and _covers(now[key], was[key]))]
        if changed:
            words = [f"{key} was {was[key]!r}, now {now[key]!r}" for key in changed]
            raise ConfigError(
                f"{str(self.folder)!r} holds another {there.kind} sweep ({'; '.join(words[:3])}); "
                f"repeat its options to continue it{_may_grow(request.grows)}, or give another --out"
            )
        task = getattr(request, "task", None)
        if task is not None:
            check_data(self.folder, task)
        if was != now:
            with locked(self.folder, wait=0):
                external = {**there.external, **_recorded(request)}
                replace(there, request=now, external=external).write(self.folder)
        return there.settled

    def run(self, wanted: Mapping[str, RunConfig], *, what: str) -> list[FinishedRun]:
        """Finish these runs (those that are done already cost nothing) and return the finished ones, in order."""
        left = {name: config for name, config in wanted.items() if read_summary(self.folder / name) is None}
        jobs = plan(left, self.folder)
        folders = {prepare_job(job, wanted, self.folder): job for job in jobs}
        work = {folder: sum(left[n].work for n in job.names if n in left) for folder, job in folders.items()}
        ended = set[Path]()

        def done() -> float:
            """By the logs: a deep run counts for more than a shallow one, a half-done one for half."""
            return sum(size * (1.0 if f in ended else self._share(folders[f], wanted)) for f, size in work.items())

        if not self.quiet:
            _say_how(jobs)
        total, title = sum(work.values()), f"{what}: {len(left)} runs"
        if not jobs:  # all is there: nothing is written, and the folder may be read-only
            return [found for name in wanted if (found := read_run(self.folder / name)) is not None]
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder, wait=0), meter(title, total=total, done=done, quiet=self.quiet or not left):
            for outcome in self.executor.run(list(folders)):
                self._note(outcome, folders[outcome.folder])
                ended.add(outcome.folder)
        return [found for name in wanted if (found := read_run(self.folder / name)) is not None]

    def _share(self, job: Job, wanted: Mapping[str, RunConfig]) -> float:
        steps = max((wanted[name].train.steps for name in job.names if name in wanted), default=1)
        return min(1.0, last_step(self.folder / job.names[0]) / steps)

    def _note(self, outcome: Outcome, job: Job) -> None:
        for name in job.names:
            path = self.folder / name / "failure.json"
            if outcome.error is None:
                path.unlink(missing_ok=True)
                self.failures.pop(name, None)
            else:
                write_json(path, {"error": outcome.error})
                self.failures[name] = outcome.error

    def stuck(self, wanted: Mapping[str, RunConfig]) -> bool:
        """Are the runs that are missing of these just those that could not be made?"""
        left = {name for name in wanted if read_summary(self.folder / name) is None}
        return bool(left) and left <= set(self.failures)

    def check(self) -> None:
        """Raise if a run could not be made."""
        if self.failures:
            name, error = next(iter(self.failures.items()))
            count = len(self.failures)
            more = f" (and {count - 1} more)" if count > 1 else ""
            raise SweepError(
                f"the run {name!r}{more} could not be made: {error}. What is finished stays in {str(self.folder)!r}; "
                "run the same command again to continue"
            )


# -- from the disk alone ----------------------------------------------------------------------------------------------
def read_sweep(folder: str | Path) -> SweepFile:
    folder = Path(folder)
    path = inside(folder, "sweep.json")
    if not path.exists():
        return _older(folder)
    body = read_object(path, remedy=REMEDY, keys={"format": int})
    if body["format"] != FORMAT:
        raise InputError(
            f"{str(folder)!r} was written by normlab {body.get('normlab')} in the format {body['format']}, and this one "
            f"reads {FORMAT}; use that version, or give another folder"
        )
    kinds = {"kind": str, "request": dict}
    kinds |= {key: dict for key in ("settled", "data", "external") if key in body}
    return pick(SweepFile, read_object(path, remedy=REMEDY, keys=kinds), source=repr(str(path)))


def _older(folder: Path) -> SweepFile:
    """A folder of before there was one kind of sweep; or a sentence that says what it is instead."""
    for name, kind in OLDER.items():
        body = read_json(folder / name, remedy=REMEDY) if (folder / name).exists() else None
        if isinstance(body, dict) and isinstance(body.get("config"), dict):
            return SweepFile(FORMAT, kind, body["config"])
    if is_run(folder):
        state = "it is finished" if read_summary(folder) else f"it has come to step {last_step(folder)}"
        raise InputError(
            f"{str(folder)!r} is one run, not a sweep ({state}); `normlab diagnose {folder}` looks into its model, and "
            "`normlab report` takes the folder of a compare, stability or lengthgen"
        )
    raise InputError(f"{str(folder)!r} is not the folder of a sweep: it has no sweep.json")


def read_request(folder: str | Path, kind: type[AnyRequest]) -> AnyRequest:
    """What was asked of the sweep in this folder."""
    there = read_sweep(folder)
    plugins.remember(there.external)
    with plugins.records():
        return kind.stored(there.request)


def remember_origins(folder: str | Path) -> None:
    """Errors about schemes that are unknown here will name the modules that the sweep in this folder had them from."""
    with suppress(InputError):
        plugins.remember(read_sweep(folder).external)


def read_runs(folder: str | Path) -> list[FinishedRun]:
    """Every finished run of a sweep."""
    read_sweep(folder)
    folders = sorted(path.parent for path in Path(folder).glob("*/config.yaml"))
    return [found for path in folders if (found := read_run(path)) is not None]


def read_all(folders: Sequence[str | Path]) -> list[FinishedRun]:
    """Of several sweeps; a run that is in two of them counts once."""
    found: dict[tuple[str, str, float | None], FinishedRun] = {}
    for folder in folders:
        for run in read_runs(folder):
            found.setdefault((run.name, run.config.to_json(), run.data), run)
    return list(found.values())


def unfinished(folder: str | Path, *, least: int) -> list[str]:
    """A sentence if runs have not ended, or fewer than the `least` number that the request needs are there."""
    begun = [path.parent for path in Path(folder).glob("*/config.yaml")]
    left = [path for path in begun if read_summary(path) is None]
    done = len(begun) - len(left)
    if not left and done >= least:
        return []
    broken = {path.name: error for path in sorted(left) if (error := failure(path)) is not None}
    why = ""
    if broken:
        name, error = next(iter(broken.items()))
        why = f"; {len(broken)} failed, {name!r} because {error}"
    return [
        f"{str(folder)!r} is not finished: {done} of {max(least, len(begun))} or more runs have ended{why}. What follows is "
        "from those alone; run its command again to go on."
    ]


def failure(folder: Path) -> str | None:
    """Why the run in this folder could not be made, or None."""
    path = folder / "failure.json"
    body = read_json(path, remedy="delete that file") if path.exists() else None
    return str(body.get("error")) if isinstance(body, dict) else None


def _say_how(jobs: Sequence[Job]) -> None:
    """Which runs are one program, and why, where that was a choice."""
    counts = Counter(f"{job.how}, since {job.why}" for job in jobs if job.why)
    for line, count in sorted(counts.items()):
        print(f"{count} job{'s' * (count != 1)} {line}", file=sys.stderr)


def _known(there: SweepFile, kind: type[Request]) -> dict[str, object]:
    """What was asked then, in today's words. What an older version did not ask about cannot have changed."""
    with plugins.records():
        whole = kind.stored(there.request).to_dict()
    return {key: value for key, value in whole.items() if key in there.request or key == "start"}


def _recorded(request: Request) -> dict[str, dict[str, str]]:
    return {name: origin.to_dict() for name, origin in request.external().items()}


def _covers(now: object, was: object) -> bool:
    if isinstance(was, list) and isinstance(now, list):
        return all(item in now for item in was)
    return isinstance(now, (int, float)) and isinstance(was, (int, float)) and now >= was


def _may_grow(keys: Sequence[str]) -> str:
    return f" ({', '.join(keys[:-1])} and {keys[-1]} may be added to)" if keys else ""
