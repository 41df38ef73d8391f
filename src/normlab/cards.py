"""The cards of the schemes as plain data: `normlab schemes` answers at once, without torch.

`cards.json` is written by `python tools/cards.py` from the schemes themselves; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from normlab.errors import ConfigError, canonical, unknown
from normlab.plugins import HINT

FILE = Path(__file__).with_name("cards.json")


@dataclass(frozen=True)
class StoredCard:
    """What `normlab schemes show NAME` prints."""

    name: str
    family: str
    equation: str
    citation: str
    growth: str
    init: str
    own_start: str
    extra_parameters: str
    branch_parameters: str
    traffic: str
    traps: tuple[str, ...]
    parent: str | None
    recipe: Mapping[str, str]
    options: Mapping[str, str]

    def to_dict(self) -> dict[str, object]:
        return {**vars(self), "traps": list(self.traps), "recipe": dict(self.recipe), "options": dict(self.options)}


def stored_cards() -> tuple[StoredCard, ...]:
    """One for each scheme, in the order of the registry."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(StoredCard(**{**card, "traps": tuple(card["traps"])}) for card in found)


def is_stored(name: str) -> bool:
    return any(card.name == canonical(name) for card in stored_cards())


def stored_card(name: str) -> StoredCard:
    cards = {card.name: card for card in stored_cards()}
    if canonical(name) not in cards:
        raise ConfigError(unknown("scheme", name, cards, hint=HINT))
    return cards[canonical(name)]
