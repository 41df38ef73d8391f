"""`normlab report`: the page of finished sweeps again, from their folders alone; several are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli._options import Json


def register(app: typer.Typer) -> None:
    @app.command()
    def report(
        folders: Annotated[list[Path], typer.Argument(help="Folders of sweeps, all of one kind.")],
        out: Annotated[Path | None, typer.Option(help="Where to write report.html; default: the first folder.")] = None,
        baseline: Annotated[str | None, typer.Option(help="What the others are compared with.")] = None,
        json: Json = False,
    ) -> None:
        """Rebuild the report of finished sweeps, or merge several into one."""
        from normlab.cli import compare, stability
        from normlab.cli._sweeps import deliver
        from normlab.errors import InputError
        from normlab.experiments import compare as comparison
        from normlab.experiments import stability as maps
        from normlab.experiments.sweep import read_sweep

        kinds = {read_sweep(folder)["kind"] for folder in folders}
        if len(kinds) > 1:
            raise InputError(f"sweeps of different kinds do not merge: {', '.join(sorted(kinds))}; give one kind")
        target = folders[0] if out is None else out
        if kinds == {"stability"}:
            deliver(maps.from_folders(folders), target, show=stability.show, json=json)
        else:
            deliver(comparison.from_folders(folders, baseline=baseline), target, show=compare.show, json=json)
