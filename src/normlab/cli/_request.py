"""Commands whose options are the fields of a request (see `experiments.request`): declared once, there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli._options import Device, Imports, Json, writable
from normlab.experiments.command import Flag, flags, from_texts, make
from normlab.experiments.request import Request

Workers = Annotated[int, typer.Option(help="Processes at a time; 0: one a core.")]
ExecutorName = Annotated[str, typer.Option("--executor", help="local or ray.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster: auto, or host:port.")]
SweepOut = Annotated[
    Path, typer.Option("--out", help="Folder of the sweep; running again continues it.", callback=writable)
]


@dataclass(frozen=True)
class Given:
    """What was typed: everything by its parameter's name, and what a command may have beside its request."""

    typed: Mapping[str, object]
    out: Path = Path("runs")
    json: bool = False
    device: str = "cpu"
    executor: str = "local"
    address: str | None = None
    workers: int = 0
    model: str = ""
    models: Sequence[str] = ()
    scheme: str = ""
    preset: str = ""
    experiment: str = ""
    settings: Sequence[str] | None = None
    set_: Sequence[str] | None = None
    test_set: Sequence[str] | None = None
    imports: Sequence[str] | None = None


def place_options(out: Path) -> list[inspect.Parameter]:
    """Where a sweep runs."""
    return [
        parameter("executor", ExecutorName, "local"), parameter("address", Address, None),
        parameter("workers", Workers, 0), parameter("device", Device, "cpu"), IMPORTS,
        parameter("out", SweepOut, out), parameter("json", Json, False),
    ]  # fmt: skip


def parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


IMPORTS = parameter("imports", Imports, None)
"""Of every command that builds a scheme by its name."""


def add_command(
    app: typer.Typer,
    request: type[Request],
    run: Callable[[typer.Context, Given], None],
    *,
    name: str,
    help: str,
    more: Sequence[inspect.Parameter] = (),
) -> None:
    """A command with an option for each field of the request that is one, and `more`."""

    def command(context: typer.Context, **typed: Any) -> None:
        beside = {field.name: typed[field.name] for field in fields(Given) if field.name in beyond}
        run(context, Given(typed, **beside))

    own, beyond = [_option(flag) for flag in flags(request)], {parameter.name for parameter in more}
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *own, *more]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = help
    app.command(name)(command)


def _option(flag: Flag) -> inspect.Parameter:
    kind: Any = flag.kind if flag.default is not None else flag.kind | None
    return parameter(flag.field, Annotated[kind, typer.Option(flag.name, help=flag.help)], flag.default)


def asked(request: type[Request], given: Given) -> Request:
    """The request that the options describe."""
    names = {flag.field for flag in flags(request)}
    return make(request, from_texts(request, {key: value for key, value in given.typed.items() if key in names}))


def explicit(context: typer.Context, given: Given) -> dict[str, object]:
    """What was really typed; the rest are defaults."""

    def typed(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    return {name: value for name, value in given.typed.items() if typed(name)}
