"""`normlab theory signal`: what back-propagation carries to each layer of the dynamics' discrete layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import typer

from normlab.cli._options import Json, Out
from normlab.cli._request import Given, add_command, asked, parameter
from normlab.experiments.request import Request, option

if TYPE_CHECKING:
    from normlab.dynamics.networks.network import NetworkLayers
    from normlab.report import Page


GROWS = 1.5  # times, over all layers: below it a stream is bounded


class SignalRequest(Request):
    """The discrete layers of several schemes, from one start."""

    what: ClassVar[str] = "signal"
    kind: ClassVar[str] = "theory signal"

    schemes: tuple[str, ...] = option(("paper",), "Names with commas, options in brackets; `paper` (its six) or `all`.")
    layers: int = option(24, "Layers.", ge=2)
    n: int = option(16, "Tokens.", ge=2)
    d: int = option(64, "Dimension.", ge=2)
    beta: float = option(5.0, "Inverse temperature.")
    weights: Literal["identity", "random", "fresh"] = option(
        "identity", "identity, random (held) or fresh (per layer)."
    )
    ffn: bool = option(False, "Add a random ReLU FFN branch.")
    seeds: int = option(4, "How many seeds.", ge=1)
    seed: int = option(0, "The first seed.", ge=0, lt=2**31)


def register(app: typer.Typer) -> None:
    help = "The gradient that reaches each layer. And the norm of the stream there: their product is flat in growing streams."
    more = [parameter("out", Out, Path("runs/theory")), parameter("json", Json, False)]
    add_command(app, SignalRequest, _run, name="signal", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.dynamics.flow.simulate import Setting
    from normlab.dynamics.names import parse_fields
    from normlab.dynamics.networks.network import layers
    from normlab.experiments.command import command_line
    from normlab.report import console, print_json, print_page, table, write_page

    request = asked(SignalRequest, given)
    assert isinstance(request, SignalRequest)
    setting = Setting(
        n=request.n, d=request.d, beta=request.beta, time=float(request.layers), weights=request.weights, ffn=request.ffn,
        seeds=tuple(range(request.seed, request.seed + request.seeds)),
    )  # fmt: skip
    found = layers(parse_fields(request.schemes), setting)
    page = _page(found)
    page.heading("How this was made")
    page.code(command_line(request, given.out))
    written = write_page(page, given.out / "signal.html")
    if given.json:
        curves = {
            name: {"gradient": found.gradient[i].mean(0).tolist(), "radius": found.radius[i].mean(0).tolist()}
            for i, name in enumerate(found.names)
        }
        print_json({"setting": setting.to_dict(), "rows": rows(found), "layers": curves, "page": written})
        return
    console().print(table(rows(found), title="The signal back, first layer over last"))
    print_page(written)


@dataclass(frozen=True)
class SignalBack:
    """First layer against last, means over seeds. The product is 1 where the gradient goes like 1 over the norm."""

    scheme: str
    gradient: float
    norm: float
    product: float

    def row(self) -> dict[str, object]:
        return {
            "scheme": self.scheme, "gradient first/last": self.gradient, "norm last/first": self.norm,
            "gradient x norm, first/last": self.product,
        }  # fmt: skip


def carried(found: NetworkLayers) -> list[SignalBack]:
    shown = []
    for i, name in enumerate(found.names):
        gradient, radius = found.gradient[i].mean(0), found.radius[i].mean(0)
        fall, growth = float(gradient[0] / gradient[-1]), float(radius[-1] / radius[0])
        shown.append(SignalBack(name, fall, growth, fall / growth))
    return shown


def rows(found: NetworkLayers) -> list[dict[str, object]]:
    return [each.row() for each in carried(found)]


def _page(found: NetworkLayers) -> Page:
    from normlab.report import Page
    from normlab.report.colours import scheme_colours
    from normlab.report.figures import figure, line

    page = Page("The signal back", subtitle=f"{len(found.t) - 1} discrete layers, {found.gradient.shape[1]} seeds")
    page.text(sentence(carried(found)), style="lead")
    colours = scheme_colours(found.names)
    layers = range(len(found.t))

    def curves(values: Sequence[Sequence[float]]) -> list[dict[str, object]]:
        return [line(layers, values[i], name, colours[name]) for i, name in enumerate(found.names)]

    drawn = figure(curves(found.gradient.mean(1).tolist()), x="layer", y="gradient at the layer", log_y=True)
    page.figure(drawn, caption="Size of the read-out's gradient with respect to what a layer holds; mean over seeds.")
    page.details(
        "How to read this",
        "In a stream that grows, the gradient at a layer goes like 1 over the norm there. Then gradient times norm is the "
        "same at the first and the last layer, and late layers get least.",
    )
    page.heading("Norm of the stream")
    drawn = figure(curves(found.radius.mean(1).tolist()), x="layer", y="mean norm of a token", log_y=True)
    page.figure(drawn, caption="Where the line is flat, a norm follows the sum.")
    page.heading("The numbers")
    page.table(rows(found), name="signal")
    return page


def sentence(shown: Sequence[SignalBack]) -> str:
    """The finding, from the numbers: does the gradient fall as the norm grows?"""
    growing = [each for each in shown if each.norm > GROWS]
    if not growing:
        return f"No stream grows {GROWS:g} times over these layers, so no gradient is lost to growth."
    most = max(growing, key=lambda each: each.norm)
    apart = max(abs(math.log(each.product)) for each in growing)
    return (
        f"In {most.scheme} the norm grows {most.norm:.3g} times, and the last layer gets {most.gradient:.3g} times less "
        f"gradient than the first. In the {len(growing)} streams that grow, gradient times norm changes by at most "
        f"{100 * math.expm1(apart):.2g} %."
    )
