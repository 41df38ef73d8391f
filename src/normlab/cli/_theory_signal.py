"""`normlab theory signal`: what back-propagation carries to each layer of the dynamics' discrete layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import typer

from normlab.cli._options import Json, Out
from normlab.cli._request import Given, add_command, asked, parameter
from normlab.experiments.request import Request, option

if TYPE_CHECKING:
    from normlab.dynamics.networks.network import NetworkLayers
    from normlab.report import Page


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
    from normlab.report import console, print_json, table

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
    written = page.write(given.out / "signal.html")
    if given.json:
        curves = {
            name: {"gradient": found.gradient[i].mean(0).tolist(), "radius": found.radius[i].mean(0).tolist()}
            for i, name in enumerate(found.names)
        }
        print_json({"setting": setting.to_dict(), "rows": rows(found), "layers": curves, "page": str(written)})
        return
    console().print(table(rows(found), title="The signal back, first layer over last"))
    console().print(f"page: {written}", markup=False)


def rows(found: NetworkLayers) -> list[dict[str, object]]:
    """Means over seeds. The product with the norm is 1 where the gradient goes like 1/r."""
    shown: list[dict[str, object]] = []
    for i, name in enumerate(found.names):
        gradient, radius = found.gradient[i].mean(0), found.radius[i].mean(0)
        carried = gradient * radius
        shown.append(
            {
                "scheme": name,
                "gradient first/last": float(gradient[0] / gradient[-1]),
                "norm last/first": float(radius[-1] / radius[0]),
                "gradient x norm, first/last": float(carried[0] / carried[-1]),
            }
        )
    return shown


def _page(found: NetworkLayers) -> Page:
    from normlab.report import Page
    from normlab.report.colours import scheme_colours
    from normlab.report.figures import figure, line

    page = Page("The signal back", subtitle=f"{len(found.t) - 1} discrete layers, {found.gradient.shape[1]} seeds")
    page.text(
        "In a stream that grows, the gradient at layer l goes like 1 over the norm there, so late layers get least."
    )
    page.table(rows(found), name="signal")
    colours = scheme_colours(found.names)
    layers = range(len(found.t))

    def curves(values: Sequence[Sequence[float]]) -> list[dict[str, object]]:
        return [line(layers, values[i], name, colours[name]) for i, name in enumerate(found.names)]

    page.heading("Gradient at each layer")
    page.figure(figure(curves(found.gradient.mean(1).tolist()), x="layer", y="|d readout / d x|", log_y=True))
    page.heading("Norm of the stream")
    page.figure(figure(curves(found.radius.mean(1).tolist()), x="layer", y="mean norm", log_y=True))
    return page
