"""`normlab watch`: a live local page over running sweeps and trainings."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def watch(
        folder: Annotated[Path, typer.Argument(help="A run, a sweep, or a folder of them.")] = Path("runs"),
        port: Annotated[int, typer.Option(help="Port on this machine; 0: a free one.", min=0, max=65535)] = 0,
        open: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    ) -> None:
        """Watch runs in a browser while they train.

        Curves, what runs and waits, time left, layers over time; finished folders too.

        It reads what other processes write and writes nothing; only this machine can see it. Ctrl-C ends it.
        """
        from normlab.errors import InputError

        if not folder.is_dir():
            what = "is a file" if folder.is_file() else "does not exist"
            raise InputError(f"the folder {str(folder)!r} {what}; give one that a command that trains writes to")
        from normlab.ui.server import serve

        def ready(address: str) -> None:
            typer.echo(f"watching {folder}: {address}\n(Ctrl-C ends)")
            if open:
                import webbrowser

                webbrowser.open(address)

        with suppress(KeyboardInterrupt):
            serve(folder.resolve(), port=port, ready=ready)
