"""`normlab verify`: is somebody else's residual what it says it is?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Json

if TYPE_CHECKING:
    from normlab.testing import Verification


def register(app: typer.Typer) -> None:
    @app.command()
    def verify(
        module: Annotated[
            str, typer.Argument(help="package.module:name or file.py:name; a torch module or what makes it.")
        ],
        scheme: Annotated[str | None, typer.Option(help="What it claims to be, where that cannot be seen.")] = None,
        trained: Annotated[
            bool, typer.Option("--trained", help="Its weights are no fresh start: do not judge it.")
        ] = False,
        strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a rule fails.")] = False,
        json: Json = False,
    ) -> None:
        """Check an implementation of mHC, HC or AttnRes. Runs normlab's contract on it."""
        from dataclasses import asdict

        from normlab.report import print_json
        from normlab.testing import examine

        found = examine(load(module), scheme, trained=trained)
        if json:
            print_json({**asdict(found), "passed": found.passed})
        else:
            _print(found)
        if strict and not found.passed:
            raise typer.Exit(1)


def load(name: str) -> object:
    """The object that `package.module:name` or `file.py:name` names; a function or class is called without arguments."""
    import importlib
    import importlib.util
    from pathlib import Path

    from torch import nn

    from normlab.errors import InputError

    place, _, attribute = name.partition(":")
    if not attribute:
        raise InputError(f"{name!r} names no object: give package.module:name or file.py:name")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            found = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found)
        else:
            found = importlib.import_module(place)
        thing: object = getattr(found, attribute)
    except (ImportError, FileNotFoundError, AttributeError) as error:
        raise InputError(f"{name!r} cannot be loaded: {error}") from None
    if callable(thing) and not isinstance(thing, nn.Module):
        try:
            return thing()
        except TypeError as error:
            raise InputError(
                f"{attribute} cannot be called without arguments ({error}); write a function that can"
            ) from None
    return thing


def _print(found: Verification) -> None:
    from normlab.report import console

    out = console()
    verdict = "passes" if found.passed else "FAILS"
    out.print(f"{found.module} ({found.kind}) against {found.scheme}: {verdict}", markup=False)
    for finding in found.findings:
        out.print(f"  {finding}", markup=False)
