"""`normlab compare`: which scheme should I use?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli._request import Given, add_command, explicit, parameter, place_options
from normlab.cli._sweeps import deliver, place_of
from normlab.experiments.command import flags, from_texts, make
from normlab.experiments.compare.presets import PRESETS, preset
from normlab.experiments.compare.request import CompareRequest

HELP = "Compare schemes, each at its own best learning rate. They are trained over seeds; it says what the numbers support."
Named = Annotated[
    str, typer.Option(help=f"A named comparison, whose settings other options override: {', '.join(PRESETS)}.")
]


def register(app: typer.Typer) -> None:
    more = [parameter("preset", Named, ""), *place_options(Path("runs/compare"))]
    add_command(app, CompareRequest, compare, name="compare", help=HELP, more=more)


def compare(context: typer.Context, given: Given) -> None:
    place = place_of(given)
    named = preset(given.preset) if given.preset else {}
    from normlab.experiments.protocol import run

    fields = {flag.field for flag in flags(CompareRequest)}
    typed = {key: value for key, value in explicit(context, given).items() if key in fields}
    values = {**named, **from_texts(CompareRequest, typed)}
    if "budget" in typed and "tokens" not in typed:  # a preset's tokens give way; one's own are asked about
        values.pop("tokens", None)
    request = make(CompareRequest, values)
    deliver(run(request, place), place.out, json=place.quiet)
