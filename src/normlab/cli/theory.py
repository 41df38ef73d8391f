"""`normlab theory ...`: closed forms and Monte Carlo. A file `_theory_*.py` beside this one adds a subcommand."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help="What the theory says, checked by numbers.", no_args_is_help=True)

    @commands.callback()
    def theory() -> None:
        """What the theory says, checked by numbers."""

    for module in sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("_theory_")
    ):
        importlib.import_module(f"normlab.cli.{module}").register(commands)
    app.add_typer(commands, name="theory")
