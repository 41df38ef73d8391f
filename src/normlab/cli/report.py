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
        """Rebuild the report of finished sweeps (compare, stability, lengthgen), or merge several into one."""
        from normlab.cli._sweeps import deliver
        from normlab.experiments.protocol import of_folders

        result = of_folders(folders).analyse(folders, baseline=baseline)
        deliver(result, folders[0] if out is None else out, json=json)
