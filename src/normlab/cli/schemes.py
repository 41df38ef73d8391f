"""`normlab schemes`: the table of schemes, and a card for each."""

from __future__ import annotations

from typing import Annotated

import typer

from normlab.cli._options import Json


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help="Every scheme: a table, and a card for each.", invoke_without_command=True)

    @commands.callback()
    def listing(context: typer.Context, json: Json = False) -> None:
        """List every scheme (or `normlab schemes show NAME` for one)."""
        if context.invoked_subcommand is not None:
            context.obj = json
            return
        from normlab.report import console, print_json, table
        from normlab.schemes import SCHEMES

        cards = [_card(name) for name in SCHEMES]
        if json:
            print_json(cards)
            return
        rows = [{key: card[key] for key in ("name", "family", "equation", "extra_parameters")} for card in cards]
        console().print(table(rows, title=f"{len(rows)} schemes (d width, M branches, L layers, N norm parameters)"))
        console().print("normlab schemes show NAME prints one card")

    @commands.command()
    def show(
        context: typer.Context, name: Annotated[str, typer.Argument(help="A scheme's name.")], json: Json = False
    ) -> None:
        """The card of one scheme: equation, init, parameters, traffic, growth, traps, citation."""
        from normlab.report import console, print_json
        from normlab.schemes import lookup

        card = _card(lookup(name).model_fields["name"].default)
        if json or context.obj:
            print_json(card)
            return
        from rich.table import Table

        drawn = Table.grid(padding=(0, 2))
        drawn.add_column(style="bold", no_wrap=True)
        drawn.add_column()
        for key, value in card.items():
            for line, text in enumerate(_lines(value)):
                drawn.add_row(key.replace("_", " ") if line == 0 else "", text)
        console().print(drawn, markup=False)

    app.add_typer(commands, name="schemes")


def _lines(value: object) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {text}" for key, text in value.items()] or ["-"]
    if isinstance(value, list):
        return value or ["-"]
    return [str(value) if value is not None else "-"]


def _card(name: str) -> dict[str, object]:
    from dataclasses import asdict

    from normlab.schemes import SCHEMES
    from normlab.schemes.recipes import recipe

    config = SCHEMES[name]
    card = asdict(config.card)
    options = {
        key: f"{field.default!r}" + (f"  {field.description}" if field.description else "")
        for key, field in config.model_fields.items()
        if key != "name"
    }
    return {"name": name, **card, "traps": list(card["traps"]), "recipe": recipe(name).words(), "options": options}
