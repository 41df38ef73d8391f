"""Write the tables of docs/start.md from the schemes' cards and the stored losses:  python tools/start_page.py"""

from __future__ import annotations

import re
from pathlib import Path

from tools.start_candidates import stored, table

from normlab.schemes import SCHEMES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start.md"


def own_starts() -> str:
    rows = [f"| `{name}` | {config.card.own_start} |" for name, config in SCHEMES.items() if config.card.own_start]
    return "\n".join(["| scheme | what it starts with |", "|---|---|", *rows])


def page(text: str) -> str:
    """The page with its tables as the cards and the stored losses have them."""
    for mark, body in (("own start", own_starts()), ("regrets", table(stored(ROOT / "docs" / "results" / "start")))):
        filled = f"<!-- {mark} -->\n{body}\n<!-- end -->"
        text = re.sub(rf"<!-- {mark} -->\n.*?<!-- end -->", lambda _, new=filled: new, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
