"""The decision guide: a template whose claims and table cells are filled in from the ledger and the stored comparison.

`{claims:ID,ID}` becomes three lists: what holds, what does not, and what is not settled. So the guide cannot say more than
the ledger does, whatever a new measurement turns up.
"""

from __future__ import annotations

import re
from pathlib import Path

from tools.site.ledger import _plain, book, outcome
from tools.site.schemes import results_table

from normlab.experiments.claims.book import Entry

TEMPLATE = Path(__file__).parents[2] / "docs" / "site" / "choose.md"
GROUPS = {
    "Holds": ("confirmed",),
    "Does not hold": ("refuted", "misprinted"),
    "Not settled": ("undecided", "not measured"),
}


def page() -> str:
    text = TEMPLATE.read_text(encoding="utf-8")
    cells = results_table()
    text = re.sub(r"\{table:(\w+):(\d+)\}", lambda f: _cell(cells[f[1]][f[2]]), text)
    text = re.sub(r"\{time:(\w+)\}", lambda f: cells[f[1]]["step time"].split(" ")[0], text)
    return re.sub(r"\{claims:([^}]+)\}", lambda f: _groups(f[1].split(",")), text)


def _cell(cell: str) -> str:
    """`loss 2.362, -0.091 (-0.110 to -0.073) against pre_norm, p 0.046, n = 3`."""
    found = re.match(r"([\d.]+), ([-+.\d]+ \(.*?\)), ([\d.]+)", cell)
    return f"loss {found[1]}, {found[2]} against pre_norm, p {found[3]}, n = 3" if found else cell


def _groups(ids: list[str]) -> str:
    entries = [book()[id] for id in ids]
    parts = []
    for title, verdicts in GROUPS.items():
        own = [entry for entry in entries if entry.decision.verdict in verdicts]
        if own:
            parts.append(f"**{title}**\n\n" + "\n".join(_line(entry) for entry in own))
    return "\n\n".join(parts)


def _line(entry: Entry) -> str:
    claim = entry.claim
    return f"- {_plain(claim.statement)} [{claim.id}](claims/{claim.seed}.md#{claim.id}): {outcome(entry)}"
