"""What the commands of sweeps share: where they run, and what is left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from normlab.cli._request import Given, add_command, asked, place_options
from normlab.experiments.request import Request

if TYPE_CHECKING:
    from normlab.experiments.protocol import Place
    from normlab.results import Result


def sweep_command(app: typer.Typer, request: type[Request], *, help: str) -> None:
    """`normlab KIND`: the options of the request, and where it runs."""

    def run(_: typer.Context, given: Given) -> None:
        place = place_of(given)
        from normlab.experiments.protocol import run as carry_out

        deliver(carry_out(asked(request, given), place), place.out, json=place.quiet)

    out = Path("runs") / request.kind
    add_command(app, request, run, name=request.kind, help=help, more=place_options(out))


def place_of(given: Given) -> Place:
    from normlab.cli._options import pick_device
    from normlab.experiments.protocol import Place
    from normlab.experiments.sweep import remember_origins

    device = pick_device(given.device)
    remember_origins(given.out)
    return Place(
        given.out, given.executor, given.address, given.workers, device, quiet=given.json, imports=given.imports or ()
    )


def deliver(result: Result, out: Path, *, json: bool) -> None:
    """Write the report, then say it: to a machine or to a person."""
    from normlab.experiments.protocol import experiment
    from normlab.report import print_json, print_page

    made_by = experiment(result.kind)
    page = made_by.write(result, out)
    if json:
        print_json({**result.to_dict(), "report": page})
    else:
        made_by.show(result)
        print_page(page)
