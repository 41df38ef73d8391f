"""`normlab atlas`: schemes at initialisation, measured beside their laws."""

from __future__ import annotations

from pathlib import Path

import typer

from normlab.cli._options import Json, Out
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.atlas.request import AtlasRequest


def register(app: typer.Typer) -> None:
    more = [parameter("out", Out, Path("runs/atlas")), IMPORTS, parameter("json", Json, False)]
    help = "Every scheme before training, side by side. Stream growth, gradients, depth mixing and cost, beside closed forms."
    add_command(app, AtlasRequest, _run, name="atlas", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.experiments.atlas import page as pages
    from normlab.experiments.atlas.measure import measure
    from normlab.experiments.command import command_line
    from normlab.files import write_json
    from normlab.report import print_json, print_page, write_page

    request = asked(AtlasRequest, given)
    assert isinstance(request, AtlasRequest)
    out: Path = given.out
    atlas = measure(request)
    write_json(out / "atlas.json", atlas.rows())
    page = write_page(pages.build(atlas, command=command_line(request, out)), out / "report.html")
    if given.json:
        print_json(atlas.rows())
    else:
        pages.show(atlas)
        print_page(page)
