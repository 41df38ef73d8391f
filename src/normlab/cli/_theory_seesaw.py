"""`normlab theory seesaw`: magnitude and gradient of norm placements in one picture, with a sentence from the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from pydantic import field_validator

from normlab.cli._options import Json, Out
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.request import Request, option
from normlab.experiments.shapes import known_schemes

if TYPE_CHECKING:
    from normlab.report import Page
    from normlab.theory.seesaw import SeesawArm


class SeesawRequest(Request):
    """Schemes at initialisation, in the setting of the mean-field theorem."""

    what: ClassVar[str] = "seesaw"
    kind: ClassVar[str] = "theory seesaw"

    schemes: tuple[str, ...] = option(("pre_norm", "post_norm"), "Names with commas, options in brackets; or a family.")
    depth: int = option(12, "Layers.", ge=2)
    dim: int = option(64, "Width.", ge=8)
    tokens: int = option(16, "Sequence length.", ge=2)
    draws: int = option(8, "Random networks that are averaged.", ge=1)
    seed: int = option(0, "Seed of every random draw.", ge=0, lt=2**62)

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)


def register(app: typer.Typer) -> None:
    help = "Who dilutes layers, who loses gradients. What the stream and the gradients do, by layer."
    more = [parameter("out", Out, Path("runs/theory")), IMPORTS, parameter("json", Json, False)]
    add_command(app, SeesawRequest, _run, name="seesaw", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.experiments.command import command_line
    from normlab.report import console, print_json, print_page, progress, table, write_page
    from normlab.theory.mean_field import MeanFieldSetting
    from normlab.theory.seesaw import seesaw

    request = asked(SeesawRequest, given)
    assert isinstance(request, SeesawRequest)
    setting = MeanFieldSetting(dim=request.dim, tokens=request.tokens, seed=request.seed)
    found = [
        seesaw(name, depth=request.depth, draws=request.draws, setting=setting)
        for name in progress(request.schemes, what="schemes", quiet=given.json)
    ]
    page = _page(found)
    page.heading("How this was made")
    page.code(command_line(request, given.out))
    written = write_page(page, given.out / "seesaw.html")
    if given.json:
        print_json({"schemes": [arm.to_dict() for arm in found], "page": written})
        return
    console().print(table(rows(found), title=f"The seesaw, {request.depth} layers at initialisation"))
    for arm in found:
        console().print(arm.sentence, markup=False)
    print_page(written)


def rows(found: Sequence[SeesawArm]) -> list[dict[str, object]]:
    return [
        {
            "scheme": arm.scheme,
            "stream ~ layer^": round(arm.exponent, 6),
            "stream, last over first layer": arm.stream[-1] / arm.stream[0],
            "W1 gradient, first over last layer": arm.kept,
        }
        for arm in found
    ]


def _page(found: Sequence[SeesawArm]) -> Page:
    from normlab.report import Page
    from normlab.report.colours import scheme_colours
    from normlab.report.figures import line, small_multiples

    page = Page("The seesaw of norm placement", subtitle=f"{len(found[0].stream)} layers at initialisation")
    for arm in found:
        page.text(arm.sentence, style="lead")
    colours = scheme_colours(arm.scheme for arm in found)
    layers = list(range(1, len(found[0].stream) + 1))
    panels = {
        "the stream, over the first layer's": [
            line(layers, [h / arm.stream[0] for h in arm.stream], arm.scheme, colours[arm.scheme]) for arm in found
        ],
        "the gradient of W1, over the largest": [
            line(layers, [g / max(arm.gradient) for g in arm.gradient], arm.scheme, colours[arm.scheme])
            for arm in found
        ],
    }
    drawn, height = small_multiples(panels, x="layer", y="ratio", log_y=True, columns=2)
    page.figure(drawn, height=height, caption="Before training, averaged over random networks.")
    page.details(
        "How to read this",
        "Left: a stream that grows makes what a late layer adds a smaller part of it. Right: a gradient that falls towards "
        "layer 1 makes early layers learn slowly. A scheme on the seesaw avoids one and gets the other.",
    )
    page.heading("The numbers")
    page.table(rows(found), name="seesaw")
    return page
