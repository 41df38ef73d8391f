"""`normlab theory mean-field`: stream and gradients at initialisation, for every scheme, beside Xiong's statements."""

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
    from normlab.theory.mean_field import MeanField, MeanFieldSetting
    from normlab.theory.widths import WidthSweep


class MeanFieldRequest(Request):
    """Schemes at initialisation, at several depths."""

    what: ClassVar[str] = "mean-field setting"
    kind: ClassVar[str] = "theory mean-field"

    schemes: tuple[str, ...] = option(
        ("post_norm", "pre_norm", "peri_norm", "deep_norm"),
        "Names with commas, options in brackets: block_attn_res(blocks=2); a family; or all.",
    )
    mode: str = option("paper", "paper (Xiong's assumptions) or real (the scheme's own init).")
    dim: int = option(64, "Width.")
    tokens: int = option(16, "Sequence length.")
    depths: tuple[int, ...] = option((2, 4, 8, 16), "Depths, with commas.")
    draws: int = option(8, "Monte Carlo draws per depth.")
    dims: tuple[int, ...] = option((), "Widths, with commas: the last FFN's gradient over the width, at 8 layers.")
    seed: int = option(0, "Seed of every random draw.", ge=0, lt=2**63)

    @field_validator("schemes")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_schemes(names)


def register(app: typer.Typer) -> None:
    help = "Stream and gradients before training. By layer and by depth, fitted, beside the stated exponents."
    more = [parameter("out", Out, Path("runs/theory")), IMPORTS, parameter("json", Json, False)]
    add_command(app, MeanFieldRequest, _run, name="mean-field", help=help, more=more)


def _run(_: typer.Context, given: Given) -> None:
    from normlab.experiments.command import command_line
    from normlab.report import console, print_json, print_page, progress, table, write_page
    from normlab.theory import mean_field as theory
    from normlab.theory.widths import width_sweep

    request = asked(MeanFieldRequest, given)
    assert isinstance(request, MeanFieldRequest)
    values = {key: value for key, value in request.to_dict().items() if key not in ("schemes", "dims")}
    setting = theory.MeanFieldSetting.from_dict(values)
    lemmas = _lemmas()
    found = [theory.mean_field(name, setting) for name in progress(request.schemes, what="schemes", quiet=given.json)]
    sweeps = [width_sweep(name, request.dims, setting) for name in request.schemes] if request.dims else []
    page = _page(found, lemmas, setting)
    if sweeps:
        page.heading("Gradient of the last FFN by width")
        page.table(width_rows(sweeps), name="widths", caption="Stated: at most d sqrt(ln d), whose exponent is beside.")
    page.heading("How this was made")
    page.code(command_line(request, given.out))
    written = write_page(page, given.out / "mean-field.html")
    if given.json:
        shown = {"setting": setting.to_dict(), "lemmas": lemmas, "schemes": [f.to_dict() for f in found]}
        shown |= {"widths": [sweep.to_dict() for sweep in sweeps]}
        print_json({**shown, "source": theory.SOURCE, "page": written})
        return
    screen = console()
    screen.print(table(lemmas, title=f"Lemmas ({theory.SOURCE}; Wang et al. 2019, arXiv 1906.01787)"))
    screen.print(table(rows(found), title=f"Exponents and factors, {request.mode} setting (stated in brackets)"))
    if sweeps:
        screen.print(table(width_rows(sweeps), title="Gradient of the last FFN by width, 8 layers"))
    print_page(written)


def _lemmas() -> list[dict[str, object]]:
    from normlab.theory import mean_field as theory

    relu, norm = theory.lemma_relu(), theory.lemma_layer_norm()
    rows: list[dict[str, object]] = [
        {"statement": "E|ReLU(X)|^2 / (sigma^2 d)", "measured": relu[0], "stated": relu[1]},
        {"statement": "|J_LN| against sqrt(d)/|x|", "measured": norm[0], "stated": norm[1]},
    ]
    forms: tuple[tuple[Literal["post_norm", "pre_norm"], str], ...] = (
        ("post_norm", "product of J_N (I + dF)"),
        ("pre_norm", "I + sum of dF"),
    )
    for name, text in forms:
        form = theory.backprop_forms(name)
        rows.append({"statement": f"{name}: dx_L/dx_0 - {text}, largest entry", "measured": form.error, "stated": 0.0})
        rows.append({"statement": f"{name}: size of dx_L/dx_0, 8 layers", "measured": form.whole, "stated": None})
        rows.append({"statement": f"{name}: size by the skip path alone", "measured": form.identity, "stated": None})
    form = theory.backprop_forms("post_norm")
    rows.append(
        {"statement": "post_norm: |J_N| behind an FFN", "measured": form.norm_after_ffn, "stated": (2 / 3) ** 0.5}
    )
    return rows


def rows(found: Sequence[MeanField]) -> list[dict[str, str]]:
    """Each fitted number, with the stated one in brackets."""
    return [
        {
            "scheme": f.scheme,
            "last FFN gradient ~ depth^": _cell(f.fits.last_gradient_vs_depth, f.stated.last_gradient_vs_depth),
            "gradient x per layer": _cell(f.fits.gradient_per_layer, f.stated.gradient_per_layer),
            "stream + per layer": _cell(f.fits.stream_added_per_layer, f.stated.stream_added_per_layer),
            "before the norm": _cell(f.fits.summed_after_ffn, f.stated.summed_after_ffn),
        }
        for f in found
    ]


def sentence(f: MeanField) -> str:
    """The two numbers of a scheme, from the fits."""
    gradient = _cell(f.fits.last_gradient_vs_depth, f.stated.last_gradient_vs_depth, "stated ")
    stream = _cell(f.fits.stream_added_per_layer, f.stated.stream_added_per_layer, "stated ")
    return f"{f.scheme}: the last FFN's gradient goes like depth^{gradient}; a layer adds {stream} to the stream."


def width_rows(sweeps: Sequence[WidthSweep]) -> list[dict[str, object]]:
    return [
        {"scheme": s.scheme, **{f"d = {d}": g for d, g in zip(s.dims, s.gradients, strict=True)}, "~ d^": s.exponent,
         "bound ~ d^": s.bound_exponent}
        for s in sweeps
    ]  # fmt: skip


def _cell(value: float, stated: float | tuple[float, float] | None, by: str = "") -> str:
    shown = "-" if value != value else f"{round(value, 6) + 0.0:.3g}"  # 5e-15 is nought
    if stated is None:
        return shown
    said = f"{stated[0]:g} to {stated[1]:g}" if isinstance(stated, tuple) else f"{stated:.3g}"
    return f"{shown} ({by}{said})"


def _page(found: Sequence[MeanField], lemmas: list[dict[str, object]], setting: MeanFieldSetting) -> Page:
    from normlab.report import Page

    about = f"{setting.mode} setting, d = {setting.dim}, {setting.tokens} tokens, {setting.draws} draws"
    page = Page("Transformers at initialisation", subtitle=about)
    for f in found:
        page.text(sentence(f), style="lead")
    deepest = {f.scheme: f.depths[-1] for f in found}
    layers = f"{found[0].depths[-1].depth} layers"
    page.figure(
        _curves({n: d.down for n, d in deepest.items()}, "layer", "gradient norm", first=1),
        caption=f"Gradient of each FFN's second matrix, {layers}. Flat: all layers learn alike.",
    )
    page.details(
        "How to read this",
        "Xiong et al. (arXiv 2002.04745) state how gradients depend on depth before training: that of Post-Norm's last FFN "
        "does not, that of Pre-Norm's falls like one over the root of the depth. Numbers in brackets are theirs.",
    )
    page.heading("By depth")
    depths = [d.depth for d in found[0].depths]
    page.figure(
        _curves({f.scheme: [d.down[-1] for d in f.depths] for f in found}, "layers", "gradient norm", xs=depths),
        caption="Gradient of the last FFN in models of several depths.",
    )
    page.heading("Stream")
    page.figure(
        _curves({n: d.stream for n, d in deepest.items()}, "branch", "mean square of the stream"),
        caption=f"{layers}, two branches each.",
    )
    page.heading("Back-propagated signal")
    page.figure(
        _curves({n: d.signal for n, d in deepest.items()}, "branch", "gradient norm"),
        caption="Gradient of the loss with respect to the stream.",
    )
    page.heading("Exponents and factors")
    page.table(rows(found), name="exponents", caption="Stated values in brackets, where the paper has one.")
    page.heading("Lemmas")
    page.table(lemmas, name="lemmas")
    return page


def _curves(
    curves: dict[str, list[float]], x: str, y: str, *, first: int = 0, xs: list[int] | None = None
) -> dict[str, object]:
    from normlab.report.colours import scheme_colours
    from normlab.report.figures import figure, line

    colours = scheme_colours(curves)
    drawn = [
        line(xs or range(first, first + len(ys)), [v or None for v in ys], name, colours[name])
        for name, ys in curves.items()
    ]
    return figure(drawn, x=x, y=y, log_y=True)
