"""`normlab cite`: the papers of schemes as BibTeX."""

from __future__ import annotations

from typing import Annotated

import typer

from normlab.cli._options import Imports, Json


def register(app: typer.Typer) -> None:
    @app.command()
    def cite(
        schemes: Annotated[list[str], typer.Argument(help="Schemes, families or `all`.")],
        imports: Imports = None,
        json: Json = False,
    ) -> None:
        """BibTeX of the papers behind schemes. What has no paper says where it ships."""
        from normlab.report import print_json
        from normlab.schemes.citations import entries

        found = entries(schemes)
        if json:
            print_json([{"scheme": e.scheme, "key": e.key, "citation": e.citation, "bibtex": e.bibtex} for e in found])
            return
        seen: set[str] = set()
        for entry in found:
            if entry.bibtex not in seen:
                typer.echo(entry.bibtex + "\n")
            seen.add(entry.bibtex)
