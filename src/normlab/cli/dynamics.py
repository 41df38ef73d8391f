"""`normlab dynamics`: the attention dynamics of the schemes, predicted and measured, with a page to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Json, Seed


def register(app: typer.Typer) -> None:
    @app.command()
    def dynamics(
        context: typer.Context,
        schemes: Annotated[str, typer.Option(help="Comma-separated names, `paper` (its six) or `all`.")] = "paper",
        n: Annotated[int, typer.Option(help="Tokens.")] = 256,
        d: Annotated[int | None, typer.Option(help="Dimension (default: n for a symmetric start, else 64).")] = None,
        beta: Annotated[float, typer.Option(help="Inverse temperature.")] = 5.0,
        init: Annotated[str, typer.Option(help="symmetric, uniform, cone or text.")] = "symmetric",
        weights: Annotated[
            str, typer.Option(help="identity, random (held over depth) or fresh (per layer).")
        ] = "identity",
        time: Annotated[float, typer.Option(help="Horizon of the curves.")] = 10.0,
        tail: Annotated[
            float | None, typer.Option(help="Horizon of the terminal reading (default: long enough).")
        ] = None,
        tau: Annotated[float | None, typer.Option(help="When mix_norm turns from Post-LN into Pre-LN (2.5).")] = None,
        alpha: Annotated[float | None, typer.Option(help="nGPT's step (1).")] = None,
        r0: Annotated[float, typer.Option(help="Initial norm of the tokens.")] = 1.0,
        seeds: Annotated[int, typer.Option(help="How many seeds (random starts or weights).", min=1)] = 1,
        heads: Annotated[int, typer.Option(help="Attention heads (random weights).")] = 1,
        ffn: Annotated[bool, typer.Option("--ffn", help="Add a random ReLU FFN branch.")] = False,
        causal: Annotated[bool, typer.Option("--causal", help="Each token sees itself and earlier ones.")] = False,
        text: Annotated[Path | None, typer.Option(help="Text file for --init text.", dir_okay=False)] = None,
        preset: Annotated[str | None, typer.Option(help="random-figure: the paper's random-weight figure.")] = None,
        max_steps: Annotated[int, typer.Option(help="Steps that one integration may take.")] = 20_000,
        json: Json = False,
        out: Annotated[Path, typer.Option("--out", help="Folder for the page.", file_okay=False)] = Path(
            "runs/dynamics"
        ),
        seed: Seed = 0,
    ) -> None:
        """Simulate how each scheme moves tokens on the sphere; print predicted beside measured; write a page."""
        from normlab.dynamics.experiment import RANDOM_FIGURE_NOTE, explore, random_figure
        from normlab.dynamics.simulate import Setting

        fields = _fields(schemes, tau, alpha)
        notes: list[str] = []
        if preset is not None:
            _check_preset(preset, context)
            setting = random_figure(seeds=seeds if seeds > 1 else 8, first=seed)
            notes.append(RANDOM_FIGURE_NOTE)
        else:
            values: dict[str, Any] = {
                "n": n, "d": d or (max(n, 2) if init == "symmetric" else 64), "beta": beta, "init": init,
                "weights": weights, "time": time, "r0": r0, "heads": heads, "ffn": ffn, "causal": causal,
                "max_steps": max_steps, "seeds": tuple(range(seed, seed + seeds)), "text": _read(text),
            }  # fmt: skip
            setting = Setting(**values)
        found = explore(fields, setting, tail=tail, shown=not json)
        page = _write(found, fields, setting, notes, out)
        if json:
            from normlab.report import print_json

            print_json({**found.to_dict(), "notes": notes, "page": str(page)})
            return
        _print(found, notes, page)


def _fields(schemes: str, tau: float | None, alpha: float | None) -> list[Any]:
    from normlab.dynamics.fields import FIELDS, PAPER_SIX, field_name, scheme_field
    from normlab.errors import ConfigError

    asked = {"paper": list(PAPER_SIX), "all": list(FIELDS)}.get(schemes, [s for s in schemes.split(",") if s.strip()])
    if not asked:
        raise ConfigError("--schemes is empty; give names separated by commas, `paper` or `all`")
    names = [field_name(name) for name in asked]
    options = {"mix_norm": {"tau": tau}, "ngpt": {"alpha": alpha}}
    for option, value, owner in (("tau", tau, "mix_norm"), ("alpha", alpha, "ngpt")):
        if value is not None and owner not in names:
            raise ConfigError(f"--{option} is for {owner}, which is not among the schemes {', '.join(names)}")
    return [scheme_field(name, **options.get(name, {})) for name in names]  # type: ignore[arg-type]


FIXED = ("n", "d", "beta", "init", "weights", "time", "tail", "r0", "heads", "ffn", "causal", "text")


def _check_preset(preset: str, context: typer.Context) -> None:
    from normlab.errors import ConfigError, canonical, unknown

    if canonical(preset) != "random_figure":
        raise ConfigError(unknown("preset", preset, ["random-figure"]))
    for name in FIXED:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name} does not go with --preset {preset}, which fixes it; leave one of the two out")


def _read(path: Path | None) -> str | None:
    from normlab.files import LIMITS, read_text

    return None if path is None else read_text(path, what="the text file", most=LIMITS.sample_bytes, cut=True)


def _write(found: Any, fields: list[Any], setting: Any, notes: list[str], out: Path) -> Path:
    import shlex

    from normlab.dynamics.page import build_page
    from normlab.dynamics.simulate import simulate

    command = (
        "normlab " + " ".join(shlex.quote(word) for word in sys.argv[1:]) if len(sys.argv) > 1 else "normlab dynamics"
    )
    ball = simulate(
        fields, n=min(setting.n, 40), d=3, beta=min(setting.beta, 1.0), time=setting.time, init="uniform",
        weights="identity", causal=setting.causal, r0=setting.r0, seeds=setting.seeds[:1], keep_tokens=True,
        samples=121, relative=1e-6, absolute=1e-8,
    )  # fmt: skip
    return build_page(found, ball, notes=notes, command=command).write(out / "dynamics.html")


def _print(found: Any, notes: list[str], page: Path) -> None:
    from normlab.dynamics.page import beginning_and_end, constants_and_times
    from normlab.report import console, table

    screen = console()
    screen.print(table(beginning_and_end(found), title="How it begins and how it ends"))
    screen.print(table(constants_and_times(found), title="Constants, and when the mean cosine reaches x"))
    for label, row in found.rows.items():
        screen.print(f"{label}: {row['clustering']}", markup=False)
    for note in notes:
        screen.print(note, markup=False)
    for warning in found.warnings:
        screen.print(f"warning: {warning}", markup=False)
    screen.print(f"page: {page}", markup=False)
