"""`normlab claims`: the claims of the field, each with a criterion, a number and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli._options import Json, writable

if TYPE_CHECKING:
    from normlab.experiments.claims.book import Book

Folder = Annotated[Path | None, typer.Option(help="Folder for the pages, one a seed.", file_okay=False)]
Evidence = Annotated[Path | None, typer.Option(help="Evidence of your own (default: the committed).", file_okay=False)]
Seed = Annotated[str | None, typer.Option(help="Only the claims of one seed: 000 to 004.")]
Strict = Annotated[bool, typer.Option(help="Exit with 1 where a verdict does not hold.")]


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help="The claims of the field, decided.", invoke_without_command=True)

    @commands.callback()
    def claims(
        context: typer.Context,
        page: Annotated[
            Path | None, typer.Option("--page", "--out", help="Folder for the pages.", callback=writable)
        ] = None,
        evidence: Evidence = None,
        seed: Seed = None,
        json: Json = False,
    ) -> None:
        """Every claim with its criterion, number and verdict; `show ID` prints one whole, `run ID` measures it again."""
        if context.invoked_subcommand is not None:
            return
        from normlab.errors import need
        from normlab.experiments.claims.book import claims as read
        from normlab.report import print_json

        if page is not None:
            need("jinja2", extra="report", purpose="--page")
        book = read(evidence=evidence).of_seed(seed)
        if json:
            print_json(book.to_dict())
        elif page is None:
            _print(book)
        if page is not None:
            from normlab.experiments.claims.page import write_pages

            written = write_pages(book, page)
            if not json:
                typer.echo(f"{book.answer}\npage: {written}")

    @commands.command("show")
    def show(claim: Annotated[str, typer.Argument(help="Its id, for example 002-02.")], json: Json = False) -> None:
        """One claim: its number, its limits, what was corrected."""
        from normlab.experiments.claims.book import claims as read
        from normlab.experiments.claims.ledger import find
        from normlab.report import console, print_json
        from normlab.results import plain

        entry = read()[find(claim).id]
        if json:
            print_json(plain(entry.to_plain()))
        else:
            console().print("\n".join(entry.lines), markup=False, highlight=False)

    @commands.command("run")
    def run(
        claim: Annotated[str, typer.Argument(help="Its id, for example 002-02; or the name of a null.")],
        budget: Annotated[str | None, typer.Option(help="Time on one core: 90s, 30m, 2h.")] = None,
        out: Annotated[Path, typer.Option(help="Folder for runs and evidence.", callback=writable)] = Path(
            "runs/claims"
        ),
        record: Annotated[bool, typer.Option(help="Write the evidence into docs/claims/evidence.")] = False,
        strict: Strict = False,
        json: Json = False,
    ) -> None:
        """Measure one claim again and say whether its verdict holds."""
        from normlab.errors import ConfigError
        from normlab.experiments.claims import book
        from normlab.experiments.claims.ledger import find
        from normlab.report import console, print_json

        if claim.startswith("null-"):
            if budget is not None or strict:
                raise ConfigError("a null is measured whole and has no verdict: --budget and --strict are for claims")
            made = book.run_null(claim, folder=out, record=record)
            typer.echo(f"{made.name}: {len(made.seeds)} seeds")
            return
        given = None if budget is None else book.seconds(budget)
        found = book.run(find(claim), budget=given, folder=out, record=record)
        if json:
            print_json(found.to_dict())
        else:
            console().print(found.answer, markup=False)
        if strict and not found.holds:
            raise typer.Exit(1)

    app.add_typer(commands, name="claims")


def _print(book: Book) -> None:
    from normlab.report import console, table

    rows = [
        {
            "claim": entry.claim.id,
            "statement": entry.claim.statement,
            "verdict": entry.decision.verdict,
            "number": "-" if entry.decision.leading is None else entry.decision.leading.number,
        }
        for entry in book.entries
    ]
    console().print(table(rows, title="The claims of the field"))
    console().print(book.answer, markup=False)
