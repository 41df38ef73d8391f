"""What an experiment is: a request, the runs that it needs, what they say, and how that is shown.

`plan` is asked again whenever its last answer has been run: a comparison tunes rates before it adds seeds, a stability
map looks closer where an edge is. It answers None when nothing is missing. Everything that is concluded comes from the
folders alone, so that `normlab report` says the same as the command that made them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from normlab.errors import ConfigError, InputError
from normlab.experiments.executors.names import executor as by_name
from normlab.experiments.executors.protocol import Executor
from normlab.experiments.request import Request
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.sweep import Settled, Sweep, read_sweep
from normlab.files import write_json, write_text
from normlab.plugins import import_modules
from normlab.report import Page, write_page
from normlab.results import Result

KINDS = ("compare", "stability", "lengthgen")
AskedFor = TypeVar("AskedFor", bound=Request)
Found = TypeVar("Found", bound=Result)


@dataclass(frozen=True)
class Wave:
    """Runs that do not wait for each other."""

    what: str
    runs: Mapping[str, RunConfig]


class Experiment(ABC, Generic[AskedFor, Found]):
    """One question that is answered by training. A new one is a folder with such an object, and its name in `KINDS`."""

    request: ClassVar[type[Request]]
    file: ClassVar[str]
    """Under this name the result is written as JSON."""

    def check(self, request: AskedFor) -> None:
        """Raise for what cannot be built: it must leave no sweep behind."""
        request.check()

    def settle(self, request: AskedFor, executor: Executor) -> Settled:
        """What is decided once for a folder."""
        return {}

    @abstractmethod
    def plan(self, request: AskedFor, settled: Settled, waves: int, folder: Path) -> Wave | None:
        """The next runs, after so many `waves`; None when nothing is missing."""

    def finish(self, request: AskedFor, settled: Settled, sweep: Sweep) -> None:
        """What is measured once all runs have ended."""

    @abstractmethod
    def analyse(self, folders: Sequence[Path], *, baseline: str | None = None) -> Found:
        """What the finished runs in these folders say."""

    @abstractmethod
    def page(self, result: Found) -> Page: ...

    @abstractmethod
    def tables(self, result: Found) -> Mapping[str, str]:
        """File name -> Markdown or CSV: what a repository keeps."""

    @abstractmethod
    def show(self, result: Found) -> None:
        """The answer, in a terminal."""

    def carry_out(self, request: AskedFor, sweep: Sweep) -> Found:
        """Run what is missing and say what all of it shows. Raises SweepError where runs could not be made."""
        self.check(request)
        settled = sweep.settle(request, lambda: self.settle(request, sweep.executor))
        waves = 0
        while (wave := self.plan(request, settled, waves, sweep.folder)) is not None and not sweep.stuck(wave.runs):
            sweep.run(wave.runs, what=wave.what)
            waves += 1
        sweep.check()
        self.finish(request, settled, sweep)
        return self.analyse([sweep.folder])

    def write(self, result: Found, out: Path) -> Path | None:
        """The result as JSON, as tables and as a page, in `out`; returns the page, if it could be drawn."""
        write_json(out / self.file, result.to_dict())
        for name, text in self.tables(result).items():
            write_text(out / name, text)
        return write_page(self.page(result), out / "report.html")


def experiment(kind: str) -> Experiment[Request, Result]:
    """The experiment of this name."""
    if kind not in KINDS:
        raise InputError(f"no experiment of this normlab is called {kind!r} (there are {', '.join(KINDS)})")
    found: Experiment[Request, Result] = importlib.import_module(f"normlab.experiments.{kind}.experiment").EXPERIMENT
    return found


def of_folders(folders: Sequence[Path]) -> Experiment[Request, Result]:
    """The experiment that these folders belong to."""
    kinds = {read_sweep(folder).kind for folder in folders}
    if len(kinds) > 1:
        raise InputError(f"sweeps of different kinds do not merge: {', '.join(sorted(kinds))}; give one kind")
    return experiment(kinds.pop())


@dataclass(frozen=True)
class Place:
    """Where an experiment runs: its folder, and on what."""

    out: Path
    executor: str = "local"
    address: str | None = None
    workers: int = 0
    device: str = "cpu"
    quiet: bool = False
    imports: Sequence[str] = ()
    """Modules with schemes of one's own, which the workers import too."""


def run(request: Request, place: Place) -> Result:
    """Carry a request out; what is finished in the folder already is only read."""
    imports = import_modules(place.imports)
    _check_imported(request, {imported.written for imported in imports})
    with by_name(
        place.executor, workers=place.workers, address=place.address, device=place.device, imports=imports
    ) as executor:
        return experiment(request.kind).carry_out(request, Sweep(Path(place.out), executor, quiet=place.quiet))


def _check_imported(request: Request, imported: Set[str]) -> None:
    """Workers know the schemes of this process only if they import the same modules."""
    for name, origin in request.external().items():
        if origin.kind == "module" and origin.name not in imported:
            raise ConfigError(
                f"the scheme {name!r} is registered in this process, and its workers do not know it: {origin.remedy}"
            )
