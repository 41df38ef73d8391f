"""`normlab dynamics`: the attention dynamics of the schemes, predicted and measured, with a page to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from normlab.cli._options import Json, Out
from normlab.cli._request import Given, add_command, asked, explicit, parameter
from normlab.experiments.request import Request, option

if TYPE_CHECKING:
    from normlab.dynamics.experiment import DynamicsFindings
    from normlab.dynamics.fields import Field
    from normlab.dynamics.flow.simulate import Setting


class DynamicsRequest(Request):
    """Schemes as equations of motion, from one start."""

    what: ClassVar[str] = "dynamics"
    kind: ClassVar[str] = "dynamics"

    schemes: tuple[str, ...] = option(
        ("paper",), "Names with commas, options in brackets: mix_norm(tau=3); a family; `paper` (its six) or `all`."
    )
    n: int = option(256, "Tokens.")
    d: int | None = option(None, "Dimension (default: n for a symmetric start, else 64).")
    beta: float = option(5.0, "Inverse temperature.")
    init: str = option("symmetric", "symmetric, uniform, cone or text.")
    weights: str = option("identity", "identity, random (held over depth) or fresh (per layer).")
    time: float = option(10.0, "Horizon of the curves.")
    tail: float | None = option(None, "Horizon of the terminal reading (default: long enough).")
    tau: float | None = option(None, "When mix_norm turns from Post-LN into Pre-LN (2.5).")
    alpha: str | None = option(None, "nGPT's step (1): a number, or a formula in t: 1/(1+t).")
    heat: str | None = option(None, "Factor on beta, a formula in t: 0.2 + 0.8*min(t/2.5, 1).")
    r0: float = option(1.0, "Initial norm of the tokens.")
    seeds: int = option(1, "How many seeds (random starts or weights).", ge=1)
    heads: int = option(1, "Attention heads (random weights).")
    ffn: bool = option(False, "Add a random ReLU FFN branch.")
    causal: bool = option(False, "Each token sees itself and earlier ones.")
    text: str | None = option(None, "Text file for --init text.")
    preset: str | None = option(None, "random-figure: the paper's random-weight figure.")
    max_steps: int = option(20_000, "Steps that one integration may take.")
    seed: int = option(0, "Seed of every random draw.", ge=0, lt=2**63)

    def setting(self) -> Setting:
        from normlab.dynamics.flow.simulate import Setting

        values: dict[str, Any] = {
            "n": self.n, "d": self.d or (max(self.n, 2) if self.init == "symmetric" else 64), "beta": self.beta,
            "init": self.init, "weights": self.weights, "time": self.time, "r0": self.r0, "heads": self.heads,
            "ffn": self.ffn, "causal": self.causal, "max_steps": self.max_steps,
            "seeds": tuple(range(self.seed, self.seed + self.seeds)), "text": _read(self.text),
        }  # fmt: skip
        return Setting(**values)

    def fields(self) -> list[Field]:
        """The rows that are asked for; --tau and --alpha are options of one row each."""
        from normlab.dynamics.expressions import formula
        from normlab.dynamics.fields import heated, scheme_field
        from normlab.dynamics.names import parse_fields
        from normlab.errors import ConfigError

        found = parse_fields(self.schemes)
        names = [row.name for row in found]
        for name, value, owner in (("tau", self.tau, "mix_norm"), ("alpha", _step(self.alpha), "ngpt")):
            if value is None:
                continue
            if owner not in names:
                raise ConfigError(f"--{name} is for {owner}, which is not among the schemes {', '.join(names)}")
            changed = scheme_field(owner, **{name: value})  # type: ignore[arg-type]
            found = [changed if row.name == owner and not row.options else row for row in found]
        if self.heat is None:
            return found
        return [heated(row, formula(self.heat, option="--heat")) for row in found]


def _step(text: str | None) -> float | str | None:
    """A number where it is one, else the formula."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def register(app: typer.Typer) -> None:
    help = "Show how each scheme moves tokens on the sphere. Simulates it, prints predicted beside measured, writes a page."
    more = [parameter("out", Out, Path("runs/dynamics")), parameter("json", Json, False)]
    add_command(app, DynamicsRequest, _run, name="dynamics", help=help, more=more)


def _run(context: typer.Context, given: Given) -> None:
    from normlab.errors import need

    need("scipy", extra="theory", purpose="`normlab dynamics`")
    from normlab.dynamics.experiment import RANDOM_FIGURE_NOTE, explore, random_figure
    from normlab.experiments.command import command_line
    from normlab.report import print_json

    request = asked(DynamicsRequest, given)
    assert isinstance(request, DynamicsRequest)
    _check_applies(request, explicit(context, given))
    fields = request.fields()
    notes: list[str] = []
    if request.preset is not None:
        _check_preset(request.preset, explicit(context, given))
        setting = random_figure(seeds=request.seeds if request.seeds > 1 else 8, first=request.seed)
        notes.append(RANDOM_FIGURE_NOTE)
    else:
        setting = request.setting()
    found = explore(fields, setting, tail=request.tail, shown=not given.json)
    page = _write(found, fields, notes, out=given.out, command=command_line(request, given.out))
    if given.json:
        print_json({**found.to_dict(), "notes": notes, "page": page})
        return
    _print(found, notes, page)


FIXED = ("n", "d", "beta", "init", "weights", "time", "tail", "r0", "heads", "ffn", "causal", "text")


def _check_preset(preset: str, typed: Mapping[str, object]) -> None:
    from normlab.errors import ConfigError, canonical, unknown

    if canonical(preset) != "random_figure":
        raise ConfigError(unknown("preset", preset, ["random-figure"]))
    for name in FIXED:
        if name in typed:
            raise ConfigError(f"--{name} does not go with --preset {preset}, which fixes it; leave one of the two out")


def _check_applies(request: DynamicsRequest, typed: Mapping[str, object]) -> None:
    """What this start and these weights would not heed is refused."""
    from normlab.errors import ConfigError

    fixed = request.preset is None and request.weights == "identity"
    still = fixed and request.init == "symmetric"
    for name, idle, why in (
        ("text", request.init != "text", "is read with --init text only"),
        ("heads", fixed, "splits random weights: give --weights random or fresh too"),
        ("seeds", still, "repeats random draws, and a symmetric start with identity weights has none"),
    ):
        if name in typed and idle and request.preset is None:
            raise ConfigError(f"--{name} {why}; leave it out")


def _read(path: str | None) -> str | None:
    from normlab.errors import InputError
    from normlab.files import LIMITS, read_text

    if path is None:
        return None
    text = read_text(path, what="the text file", most=LIMITS.sample_bytes, cut=True)
    if not text.strip():
        raise InputError(f"the text {path!r} is empty; --text takes a file with words in it")
    return text


def _write(found: DynamicsFindings, fields: list[Field], notes: list[str], *, out: Path, command: str) -> Path | None:
    from normlab.dynamics.flow.simulate import simulate
    from normlab.dynamics.page import build_page
    from normlab.report import write_page

    setting = found.setting
    ball = simulate(
        fields, n=min(setting.n, 40), d=3, beta=min(setting.beta, 1.0), time=setting.time, init="uniform",
        weights="identity", causal=setting.causal, r0=setting.r0, seeds=setting.seeds[:1], keep_tokens=True,
        samples=121, relative=1e-6, absolute=1e-8,
    )  # fmt: skip
    return write_page(build_page(found, ball, notes=notes, command=command), out / "dynamics.html")


def _print(found: DynamicsFindings, notes: list[str], page: Path | None) -> None:
    from normlab.dynamics.page import beginning_and_end, constants_and_times
    from normlab.report import console, print_page, table

    screen = console()
    screen.print(table(beginning_and_end(found), title="How it begins and how it ends"))
    screen.print(table(constants_and_times(found), title="Constants, and when the mean cosine reaches x"))
    for label, row in found.schemes.items():
        screen.print(f"{label}: {row.report.clustering}", markup=False)
    for note in notes:
        screen.print(note, markup=False)
    for warning in found.warnings:
        screen.print(f"warning: {warning}", markup=False)
    print_page(page)
