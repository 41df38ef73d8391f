"""One run after the other in this process, each to its end or to a step: for runs that take hours, in slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Self

from normlab.errors import NormlabError
from normlab.experiments.executors.protocol import Outcome
from normlab.experiments.runs.trainer import run_folder


@dataclass
class HereExecutor:
    """Every run gets to the step `until` before the next one begins, so that all of them have come equally far.

    A run that pauses has no summary yet; the same sweep with a later `until` goes on with it.
    """

    until: int | None = None
    device: str = "cpu"
    name: str = "here"

    @property
    def at_once(self) -> int:
        return 1

    def run(self, folders: Sequence[Path]) -> Iterator[Outcome]:
        for folder in folders:
            try:
                run_folder(folder, threads=1, device=self.device, until=self.until)
            except NormlabError as error:
                yield Outcome(folder, str(error))
            else:
                yield Outcome(folder)

    def close(self) -> None:
        """There is nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
