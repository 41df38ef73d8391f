"""Write src/normlab/cards.json, from which `normlab schemes` answers without torch:

python tools/cards.py
"""

from __future__ import annotations

from dataclasses import asdict

from normlab.cards import FILE, StoredCard
from normlab.files import write_json
from normlab.schemes import SCHEMES
from normlab.schemes.recipes import recipe


def card(name: str) -> StoredCard:
    """The card of a registered scheme, with its recipe and its options."""
    config = SCHEMES[name]
    options = {
        key: f"{field.default!r}" + (f"  {field.description}" if field.description else "")
        for key, field in config.model_fields.items()
        if key != "name"
    }
    return StoredCard(name=name, **asdict(config.card), recipe=recipe(name).words(), options=options)


def cards() -> list[dict[str, object]]:
    return [card(name).to_dict() for name in SCHEMES]


if __name__ == "__main__":
    write_json(FILE, cards())
