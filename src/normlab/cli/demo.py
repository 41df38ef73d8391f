"""`normlab demo`: the phenomenon in about two minutes on two cores, and a page that tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli._options import Json
from normlab.cli._request import SweepOut, Workers

Skip = Annotated[str, typer.Option(help="Stages to leave out, with commas: atlas, training, fault (or 1, 2, 3).")]


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        skip: Skip = "",
        workers: Workers = 0,
        out: SweepOut = Path("runs/demo"),
        json: Json = False,
    ) -> None:
        """See it in about two minutes on two cores.

        All schemes before training, three while they train (one rate for all: an illustration, not a comparison), and a
        planted fault.

        Ctrl-C goes on to the next stage. Running it again continues, and ends with the same page: report.html.
        """
        from normlab.experiments.demo.settings import settings, skipped

        left_out = skipped(tuple(part.strip() for part in skip.split(",") if part.strip()))

        from normlab.experiments.demo.story import Story
        from normlab.experiments.demo.summary import summary
        from normlab.report import print_json

        told = Story(settings(), out, left_out, workers=workers, quiet=json).tell()
        if json:
            print_json(summary(told))
