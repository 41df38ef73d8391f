"""Write src/normlab/cards.json, from which `normlab schemes` answers without torch:

python tools/cards.py
"""

from __future__ import annotations

from normlab.cards import FILE
from normlab.files import write_json
from normlab.schemes.cards import card
from normlab.schemes.registry import SCHEMES


def cards() -> list[dict[str, object]]:
    """Of those that are built in: what other packages bring is not ours to store."""
    return [card(name).to_dict() for name in SCHEMES.registered]


if __name__ == "__main__":
    write_json(FILE, cards())
