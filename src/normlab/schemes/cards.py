"""A scheme's card from its class: for `tools/cards.py`, which stores those that are built in, and for somebody's own."""

from __future__ import annotations

from dataclasses import asdict

from normlab.cards import StoredCard
from normlab.schemes.recipes import recipe
from normlab.schemes.registry import SCHEMES, lookup, origin_of


def card(name: str) -> StoredCard:
    """The card of a registered scheme, with its recipe and its options."""
    config = lookup(name)
    options = {
        key: f"{field.default!r}" + (f"  {field.description}" if field.description else "")
        for key, field in config.model_fields.items()
        if key != "name"
    }
    registered = config.model_fields["name"].default
    return StoredCard(name=registered, **asdict(config.card), recipe=recipe(registered).words(), options=options)


def own_cards() -> tuple[StoredCard, ...]:
    """Of the schemes that are not built in: of installed packages, and of imported modules."""
    return tuple(card(name) for name, config in SCHEMES.items() if origin_of(config) is not None)
