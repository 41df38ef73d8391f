"""`normlab theory mean-field`: stream and gradients at initialisation, for every scheme, beside Xiong's statements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Json, Seed

FITS = {
    "last_gradient_vs_depth": "last FFN gradient ~ depth^",
    "gradient_per_layer": "gradient x per layer",
    "stream_added_per_layer": "stream + per layer",
    "summed_after_ffn": "before the norm",
}


def register(app: typer.Typer) -> None:
    @app.command("mean-field")
    def mean_field(
        schemes: Annotated[
            str, typer.Option(help="Comma-separated names, or `all`.")
        ] = "post_norm,pre_norm,peri_norm,deep_norm",
        mode: Annotated[
            str, typer.Option(help="paper (Xiong's assumptions) or real (the scheme's own init).")
        ] = "paper",
        dim: Annotated[int, typer.Option(help="Width.")] = 64,
        tokens: Annotated[int, typer.Option(help="Sequence length.")] = 16,
        depths: Annotated[str, typer.Option(help="Depths, comma-separated.")] = "2,4,8,16",
        draws: Annotated[int, typer.Option(help="Monte Carlo draws per depth.")] = 8,
        json: Json = False,
        out: Annotated[Path, typer.Option("--out", help="Folder for the page.", file_okay=False)] = Path("runs/theory"),
        seed: Seed = 0,
    ) -> None:
        """Stream norm and gradients by layer and by depth at initialisation, fitted and beside the stated exponents."""
        from normlab.report import console, print_json, progress, table
        from normlab.theory import mean_field as theory

        names = theory.registered() if schemes == "all" else [s for s in schemes.split(",") if s.strip()]
        setting = theory.Setting(mode=mode, dim=dim, tokens=tokens, depths=_integers(depths), draws=draws, seed=seed)  # type: ignore[arg-type]
        lemmas = _lemmas(theory)
        found = [theory.mean_field(name, setting) for name in progress(names, what="schemes", quiet=json)]
        page = _page(found, lemmas, setting).write(out / "mean-field.html")
        if json:
            values = {"setting": setting.to_dict(), "lemmas": lemmas, "schemes": [f.to_dict() for f in found]}
            print_json({**values, "source": theory.SOURCE, "page": str(page)})
            return
        screen = console()
        screen.print(table(lemmas, title=f"Lemmas ({theory.SOURCE}; Wang et al. 2019, arXiv 1906.01787)"))
        screen.print(table(rows(found), title=f"Exponents and factors, {mode} setting (stated in brackets)"))
        screen.print(f"page: {page}", markup=False)


def _integers(text: str) -> tuple[int, ...]:
    from normlab.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(
            f"--depths takes whole numbers separated by commas, for example 2,4,8; got {text!r}"
        ) from None


def _lemmas(theory: Any) -> list[dict[str, Any]]:
    relu, norm = theory.lemma_relu(), theory.lemma_layer_norm()
    rows = [
        {"statement": "E|ReLU(X)|^2 / (sigma^2 d)", "measured": relu[0], "stated": relu[1]},
        {"statement": "|J_LN| against sqrt(d)/|x|", "measured": norm[0], "stated": norm[1]},
    ]
    for name, text in (("post_norm", "product of J_N (I + dF)"), ("pre_norm", "I + sum of dF")):
        form = theory.backprop_forms(name)
        rows.append({"statement": f"{name}: dx_L/dx_0 - {text}, largest entry", "measured": form.error, "stated": 0.0})
        rows.append({"statement": f"{name}: size of dx_L/dx_0, 8 layers", "measured": form.whole, "stated": None})
        rows.append({"statement": f"{name}: size by the skip path alone", "measured": form.identity, "stated": None})
    form = theory.backprop_forms("post_norm")
    rows.append(
        {"statement": "post_norm: |J_N| behind an FFN", "measured": form.norm_after_ffn, "stated": (2 / 3) ** 0.5}
    )
    return rows


def rows(found: list[Any]) -> list[dict[str, Any]]:
    return [
        {"scheme": f.scheme, **{title: _cell(f.fits[key], f.stated.get(key)) for key, title in FITS.items()}}
        for f in found
    ]


def _cell(value: float, stated: Any) -> str:
    shown = "-" if value != value else f"{value:.3g}"
    if stated is None:
        return shown
    said = f"{stated[0]:g} to {stated[1]:g}" if isinstance(stated, tuple) else f"{stated:.3g}"
    return f"{shown} ({said})"


def _page(found: list[Any], lemmas: list[dict[str, Any]], setting: Any) -> Any:
    from normlab.report import Page

    about = f"{setting.mode} setting, d = {setting.dim}, {setting.tokens} tokens, {setting.draws} draws"
    page = Page("Transformers at initialisation", subtitle=about)
    page.heading("Lemmas")
    page.table(lemmas, name="lemmas")
    page.heading("Exponents and factors")
    page.table(rows(found), name="exponents", caption="Stated values in brackets, where the paper has one.")
    deepest = [(f.scheme, f.depths[-1]) for f in found]
    page.heading("Stream")
    page.figure(_figure({n: d.stream for n, d in deepest}, "branch", "mean square of h", "log"))
    page.heading("Gradient of each FFN's second matrix")
    page.figure(_figure({n: d.down for n, d in deepest}, "layer", "Frobenius norm", "log", first=1))
    page.heading("Gradient of the last FFN by depth")
    depths = [d.depth for d in found[0].depths]
    page.figure(
        _figure({f.scheme: [d.down[-1] for d in f.depths] for f in found}, "depth", "Frobenius norm", "log", x=depths)
    )
    page.heading("Back-propagated signal")
    page.figure(_figure({n: d.signal for n, d in deepest}, "branch", "gradient norm at h", "log"))
    return page


def _figure(curves: dict[str, list[float]], across: str, up: str, kind: str, *, first: int = 0, x: Any = None) -> Any:
    data = [
        {"x": x or list(range(first, first + len(y))), "y": [v or None for v in y], "name": name, "type": "scatter"}
        for name, y in curves.items()
    ]
    axes = {"xaxis": {"title": {"text": across}}, "yaxis": {"title": {"text": up}, "type": kind}}
    return {"data": data, "layout": axes}
