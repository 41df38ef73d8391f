"""`normlab theory contributions`: each layer's share of the stream at initialisation, and the exponent of its fall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import typer
from pydantic import field_validator

from normlab.cli._options import Json, Out
from normlab.cli._request import IMPORTS, Given, add_command, asked, parameter
from normlab.experiments.request import Request, option
from normlab.experiments.shapes import known_schemes

if TYPE_CHECKING:
    from normlab.report import Page
    from normlab.theory.contributions import Contributions


class ContributionsRequest(Request):
    """Schemes at initialisation in one deep shape."""

    what: ClassVar[str] = "contributions"
    kind: ClassVar[str] = "theory contributions"

    schemes: tuple[str, ...] = option(("pre_norm", "post_norm"), "Names with commas, options in brackets; or a family.")
    init: Literal["paper", "gpt2"] = option("paper", "paper (unit branches) or gpt2 (the library's own).")
    depth: int = option(96, "Layers.", ge=2)
    dim: int = option(128, "Width.", ge=8)
    tokens: int = option(16, "Sequence length.", ge=2)
    seed: int = option(0, "Seed of every random draw.", ge=0, lt=2**63)

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)


def register(app: typer.Typer) -> None:
    help = (
        "How much of the stream each layer is. By depth, with the exponents: 1/l of the square, 1/sqrt(l) of the norm."
    )
    more = [parameter("out", Out, Path("runs/theory")), IMPORTS, parameter("json", Json, False)]
    add_command(app, ContributionsRequest, _run, name="contributions", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.experiments.command import command_line
    from normlab.report import console, print_json, print_page, progress, table, write_page
    from normlab.theory.contributions import ContributionSetting, contributions

    request = asked(ContributionsRequest, given)
    assert isinstance(request, ContributionsRequest)
    setting = ContributionSetting(
        depth=request.depth, dim=request.dim, tokens=request.tokens, init=request.init, seed=request.seed
    )
    found = [contributions(name, setting) for name in progress(request.schemes, what="schemes", quiet=given.json)]
    page = _page(found, setting.init)
    page.heading("How this was made")
    page.code(command_line(request, given.out))
    written = write_page(page, given.out / "contributions.html")
    if given.json:
        print_json({"setting": setting.to_dict(), "schemes": [f.to_dict() for f in found], "page": written})
        return
    console().print(
        table(rows(found), title=f"Shares of the stream, {request.depth} layers, {request.init} initialisation")
    )
    for f in found:
        console().print(sentence(f), markup=False)
    print_page(written)


def rows(found: Sequence[Contributions]) -> list[dict[str, object]]:
    return [
        {
            "scheme": f.scheme,
            "stream ~ layer^": round(f.stream_exponent, 6),
            "share ~ layer^": round(f.share_exponent, 6),
            "its square ~ layer^": round(2 * f.share_exponent, 6),
            "first layer": f.share[0],
            "last layer": f.share[-1],
        }
        for f in found
    ]


def sentence(f: Contributions) -> str:
    """The finding, from the numbers."""
    change = f.share[0] / f.share[-1]
    kept = f"{change:.3g} times less than the first" if change > 1.2 else "no less than the first"
    return (
        f"{f.scheme}: the last of {len(f.share)} layers is {f.share[-1]:.3f} of the stream's norm, {kept}; the share goes "
        f"like layer^{f.share_exponent:.2f}."
    )


def _page(found: Sequence[Contributions], init: str) -> Page:
    from normlab.report import Page
    from normlab.report.colours import scheme_colours
    from normlab.report.figures import figure, line, theory

    page = Page("What each layer adds to the stream", subtitle=f"{len(found[0].share)} layers, {init} initialisation")
    for f in found:
        page.text(sentence(f), style="lead")
    colours = scheme_colours(f.scheme for f in found)
    layers = found[0].layers
    traces = [line(layers, f.share, f.scheme, colours[f.scheme]) for f in found]
    if init == "paper":
        traces.append(theory(layers, [(1 + layer) ** -0.5 for layer in layers], "1/sqrt(1 + l): unit layers"))
    drawn = figure(traces, x="layer", y="share of the stream's norm", log_x=True, log_y=True)
    page.figure(drawn, caption="What a layer adds, over the stream behind it; dotted: if all layers added alike.")
    page.details(
        "How to read this",
        "A share of 0.1 says that the layer's output is a tenth as long as the stream that it joins. On two logarithmic axes "
        "a power of the layer's number is a straight line.",
    )
    page.heading("The stream")
    drawn = figure(
        [line(layers, f.stream, f.scheme, colours[f.scheme]) for f in found], x="layer", y="rms of the stream",
        log_x=True, log_y=True,
    )  # fmt: skip
    page.figure(drawn, caption="Why: where the stream grows, the same output is a smaller share of it.")
    page.heading("The numbers")
    page.table(rows(found), name="contributions", caption="Exponents are fitted from layer 8 on.")
    return page
