"""`normlab report`: the page of sweeps again, from their folders alone; several are merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Json, there, writable

if TYPE_CHECKING:
    from normlab.experiments.progress import SweepProgress


def _show(state: SweepProgress) -> None:
    """Nothing is said of a sweep that has come to its end."""
    from normlab.experiments.progress import rows
    from normlab.report import console, table

    if not state.complete:
        console().print(table(rows(state.runs), title=state.sentence()))


def _print(states: Sequence[SweepProgress]) -> None:
    from normlab.report import print_json
    from normlab.results import plain

    print_json({"progress": plain(states)})


def register(app: typer.Typer) -> None:
    @app.command()
    def report(
        folders: Annotated[list[Path], typer.Argument(help="Folders of sweeps, all of one kind.", callback=there)],
        out: Annotated[
            Path | None, typer.Option(help="Where to write report.html; default: the first folder.", callback=writable)
        ] = None,
        baseline: Annotated[str | None, typer.Option(help="What the others are compared with.")] = None,
        json: Json = False,
    ) -> None:
        """Make the page of finished sweeps anew, or merge several.

        Sweeps of compare, stability and lengthgen.

        Of one that is still running it says what runs, what waits, what failed and why. It imports no modules of yours.
        """
        from normlab import plugins
        from normlab.cli._sweeps import deliver
        from normlab.experiments.progress import read_progress
        from normlab.experiments.protocol import of_folders

        with plugins.records(plugins=False):
            states = [read_progress(folder) for folder in folders]
            if not json:
                for state in states:
                    _show(state)
            if not any(run.state in ("finished", "diverged") for state in states for run in state.runs):
                if json:
                    _print(states)
                return
            result = of_folders(folders).analyse(folders, baseline=baseline)
            deliver(result, folders[0] if out is None else out, json=json)
