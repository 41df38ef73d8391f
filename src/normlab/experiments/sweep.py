"""A sweep: many cells in one folder, run by an executor, continued by running it again.

    runs/<sweep>/sweep.json         what was asked (kind, request), what follows from it and the files' digests (settled once)
    runs/<sweep>/<cell>/            a cell (see `cell`)
    runs/<sweep>/<cell>/failure.json  why a cell could not run; gone when it does

A cell that fails does not stop the others, and nothing that is finished is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import normlab
from normlab.errors import ConfigError, InputError, NormlabError
from normlab.experiments import cell as cells
from normlab.experiments.cell import CellConfig
from normlab.experiments.folder import last_step
from normlab.files import write_json
from normlab.report.terminal import meter
from normlab.tasks import Task
from normlab.training.record import read_log

FORMAT = 1


class SweepError(NormlabError):
    """Some cells could not run; the message says which, why, and what stays."""


@dataclass(frozen=True)
class Outcome:
    """How an executor's attempt at a cell ended: `error` is None where it is finished."""

    folder: Path
    error: str | None = None


class Executor(Protocol):
    """Runs the cells in these folders and yields an outcome for each, in the order they end."""

    name: str

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]: ...


@dataclass(frozen=True)
class Cell:
    """A cell on disk."""

    folder: Path
    config: CellConfig
    summary: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def scheme(self) -> str:
        return self.config.model.scheme.name

    @property
    def status(self) -> str:
        return str(self.summary["status"])

    @property
    def loss(self) -> float | None:
        """Held-out loss at the end; None where the run diverged."""
        return self.summary.get("validation") if self.status == "finished" else None

    @property
    def data(self) -> float | None:
        """Cells that differ here were scored on different data, even if from one path."""
        found = cells.context_free(self.config, self.summary)
        return None if found is None else round(found, 6)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return read_log(self.folder / "log.jsonl")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("kind") == kind]


@dataclass
class Sweep:
    """The folder of a sweep. `settle` keeps what was decided once; `run` brings cells to their end."""

    folder: Path
    executor: Executor
    quiet: bool = False
    failures: dict[str, str] = field(default_factory=dict)

    def settle(
        self, kind: str, request: Mapping[str, Any], decide: Any, *, grows: Sequence[str] = (), task: Task | None = None
    ) -> dict[str, Any]:
        """What follows from the request: `decide()` the first time, as it is written in the folder ever after.

        A time budget is turned into steps by measuring this machine; a second run must not measure again. In the keys
        that it `grows` by, a later request may ask for more than the folder holds, in any order; never for less. The
        files that the `task` reads must stay as they are: workers check that too, before each cell.
        """
        path = self.folder / "sweep.json"
        if path.exists():
            there = read_sweep(self.folder)
            was, now = there["request"], _plain(request)
            # What an older version did not ask about cannot have changed.
            known = [key for key in now if key in was]
            changed = [k for k in known if was[k] != now[k] and not (k in grows and _covers(now[k], was[k]))]
            if there["kind"] != kind or changed:
                words = [f"{key} was {was[key]!r}, now {now[key]!r}" for key in changed]
                raise ConfigError(
                    f"{str(self.folder)!r} holds another {there['kind']} sweep ({'; '.join(words[:3]) or 'its kind'}); "
                    f"repeat its options to continue it{_may_grow(grows)}, or give another --out"
                )
            if task is not None:
                cells.check_data(self.folder, task)
            if was != now:
                with cells.locked(self.folder, wait=0):
                    write_json(path, {**there, "request": now})
            return there["settled"]
        data = task.files() if task is not None else {}
        settled = decide()
        body = {"format": FORMAT, "kind": kind, "normlab": normlab.__version__, "request": request, "settled": settled}
        write_json(path, {**body, "data": data} if data else body)
        return json.loads(json.dumps(settled))

    def run(self, wanted: Mapping[str, CellConfig], *, what: str) -> list[Cell]:
        """Finish these cells (those that are done already cost nothing) and return the finished ones, in order."""
        folders = {name: cells.prepare(self.folder / name, config) for name, config in wanted.items()}
        left = {folder: wanted[name] for name, folder in folders.items() if cells.summary(folder) is None}
        work, ended = sum(config.work for config in left.values()), set[Path]()

        def done() -> float:
            """By the logs: a deep cell counts for more than a shallow one, a half-done one for half."""
            shares = {f: 1.0 if f in ended else min(1.0, last_step(f) / c.train.steps) for f, c in left.items()}
            return sum(left[folder].work * share for folder, share in shares.items())

        quiet = self.quiet or not left
        with cells.locked(self.folder, wait=0), meter(f"{what}: {len(left)} runs", total=work, done=done, quiet=quiet):
            for outcome in self.executor.run(list(left)):
                self._note(outcome)
                ended.add(outcome.folder)
        return [found for name in wanted if (found := read_cell(folders[name])) is not None]

    def _note(self, outcome: Outcome) -> None:
        path = outcome.folder / "failure.json"
        if outcome.error is None:
            path.unlink(missing_ok=True)
            self.failures.pop(outcome.folder.name, None)
        else:
            write_json(path, {"error": outcome.error})
            self.failures[outcome.folder.name] = outcome.error

    def check(self) -> None:
        """Raise if a cell could not run."""
        if self.failures:
            name, error = next(iter(self.failures.items()))
            count = len(self.failures)
            more = f" (and {count - 1} more cells)" if count > 1 else ""
            raise SweepError(
                f"the cell {name!r}{more} could not run: {error}. What is finished stays in {str(self.folder)!r}; "
                "run the same command again to continue"
            )


def read_sweep(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / "sweep.json"
    if not path.exists():
        raise InputError(f"{str(folder)!r} is not the folder of a sweep: it has no sweep.json")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        version = body["format"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise InputError(f"{str(path)!r} is damaged: it is not the JSON that normlab writes") from None
    if version != FORMAT:
        raise InputError(
            f"{str(folder)!r} was written by normlab {body.get('normlab')} in the format {version}, and this one reads "
            f"{FORMAT}; use that version, or give another folder"
        )
    return body


def read_cell(folder: str | Path) -> Cell | None:
    """A finished cell, or None."""
    found = cells.summary(folder)
    return None if found is None else Cell(Path(folder), cells.load(folder), found)


def read_cells(folder: str | Path) -> list[Cell]:
    """Every finished cell of a sweep, from the disk alone."""
    read_sweep(folder)
    folders = sorted(path.parent for path in Path(folder).glob("*/config.yaml"))
    return [found for path in folders if (found := read_cell(path)) is not None]


def unfinished(folder: str | Path, *, least: int) -> list[str]:
    """A sentence if runs have not ended, or fewer than the `least` number that the request needs are there."""
    begun = [path.parent for path in Path(folder).glob("*/config.yaml")]
    left = [path for path in begun if cells.summary(path) is None]
    done = len(begun) - len(left)
    if not left and done >= least:
        return []
    broken = sorted(path for path in left if (path / "failure.json").exists())
    why = ""
    if broken:
        error = json.loads((broken[0] / "failure.json").read_text(encoding="utf-8"))["error"]
        why = f"; {len(broken)} failed, {broken[0].name!r} because {error}"
    return [
        f"{str(folder)!r} is not finished: {done} of {max(least, len(begun))} or more runs have ended{why}. What follows is "
        "from those alone; run its command again to go on."
    ]


def read_all(folders: Sequence[str | Path]) -> list[Cell]:
    """Of several sweeps; a cell that is in two of them counts once."""
    found: dict[tuple[str, str, float | None], Cell] = {}
    for folder in folders:
        for cell in read_cells(folder):
            found.setdefault((cell.name, cell.config.to_json(), cell.data), cell)
    return list(found.values())


def _covers(now: Any, was: Any) -> bool:
    if isinstance(was, list):
        return all(item in now for item in was)
    return now >= was


def _may_grow(keys: Sequence[str]) -> str:
    return f" ({', '.join(keys[:-1])} and {keys[-1]} may be added to)" if keys else ""


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
