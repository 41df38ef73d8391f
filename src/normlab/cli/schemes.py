"""`normlab schemes`: the table of schemes, and a card for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
import typer.core

from normlab.cli._options import Imports, Json

if TYPE_CHECKING:
    from normlab.cards import StoredCard


class Cards(typer.core.TyperGroup):
    """`normlab schemes NAME` is `normlab schemes show NAME`."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


def register(app: typer.Typer) -> None:
    commands = typer.Typer(cls=Cards, help="Every scheme: a table, and a card for each.", invoke_without_command=True)

    @commands.callback()
    def listing(context: typer.Context, imports: Imports = None, json: Json = False) -> None:
        """List every scheme (or `normlab schemes show NAME` for one)."""
        if context.invoked_subcommand is not None:
            context.obj = json
            return
        from normlab.cards import stored_cards
        from normlab.report import console, print_json, table

        cards = [card.to_dict() for card in (*stored_cards(), *_own_cards())]
        if json:
            print_json(cards)
            return
        rows = [{key: card[key] for key in ("name", "family", "equation", "extra_parameters")} for card in cards]
        console().print(table(rows, title=f"{len(rows)} schemes (d width, M branches, L layers, N norm parameters)"))
        console().print("normlab schemes show NAME prints one card")

    @commands.command()
    def show(
        context: typer.Context,
        name: Annotated[str, typer.Argument(help="A scheme's name.")],
        imports: Imports = None,
        json: Json = False,
    ) -> None:
        """The card of one scheme: equation, cost, traps, citation."""
        from normlab.cards import is_stored, stored_card
        from normlab.errors import canonical
        from normlab.report import console, print_json

        own = {} if is_stored(name) else {card.name: card for card in _own_cards()}
        card = (own.get(canonical(name)) or stored_card(name)).to_dict()
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


def _own_cards() -> Sequence[StoredCard]:
    """Torch is loaded only where there is something that is not built in."""
    from normlab.plugins import anything

    if not anything():
        return ()
    from normlab.schemes.cards import own_cards

    return own_cards()


def _lines(value: object) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {text}" for key, text in value.items()] or ["-"]
    if isinstance(value, list):
        return value or ["-"]
    return [str(value) if value not in (None, "") else "-"]
