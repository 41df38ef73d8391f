"""The decision guide: a template whose claims and table cells are filled in from the ledger and the stored comparison.

`{claims:ID,ID}` becomes three lists: what holds, what does not, and what is not settled. So the guide cannot say more than
the ledger does, whatever a new measurement turns up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.site.ledger import _plain, book, outcome
from tools.site.schemes import results_table

from normlab.experiments.claims.book import Entry

TEMPLATE = Path(__file__).parents[2] / "docs" / "site" / "choose.md"
LIMIT = 0.05
GROUPS = {
    "Holds": ("confirmed",),
    "Does not hold": ("refuted", "misprinted"),
    "Not settled": ("undecided", "not measured"),
}


def page() -> str:
    text = TEMPLATE.read_text(encoding="utf-8")
    cells = results_table()
    text = text.replace("{beats}", beats(cells))
    text = re.sub(r"\{table:(\w+):(\d+)\}", lambda f: _cell(cells[f[1]][f[2]]), text)
    text = re.sub(r"\{time:(\w+)\}", lambda f: cells[f[1]]["step time"].split(" ")[0], text)
    return re.sub(r"\{claims:([^}]+)\}", lambda f: _groups(f[1].split(",")), text)


def beats(cells: dict[str, dict[str, str]]) -> str:
    """Who is established as better and worse than Pre-Norm in the stored comparison, with what a step costs."""
    depths = sorted({key for row in cells.values() for key in row if key.isdigit()}, key=int)
    lines, leads = [], []
    for layers in depths:
        known = {name: _gap(row[layers]) for name, row in cells.items()}
        sure = {name: gap for name, gap in known.items() if gap is not None and gap.p < LIMIT}
        times = {name: cells[name]["step time"].split(" ")[0] for name in sure}
        better = [
            f"**{name} is better**, {gap.text} nats, p {gap.p:g}; its step takes {times[name]} times as long"
            for name, gap in sure.items() if gap.mean < 0
        ]  # fmt: skip
        leads += [f"{name} at {layers} layers" for name, gap in sure.items() if gap.mean < 0]
        worse = [name for name, gap in sure.items() if gap.mean > 0]
        parts = [*better, f"worse for certain: {', '.join(worse)}"] if worse else better
        head = "" if better else "no scheme is established as better; "
        lines.append(f"- At {layers} layers {head}{'; '.join(parts) or 'none is established as worse'}.")
    return (
        f"**In the first 200 steps, of {len(cells)} schemes: {', '.join(leads) or 'none'}.** The [stored comparison]"
        "(results/README.md) trains each at its own best learning rate, three seeds, p after Holm's correction:\n\n"
        + "\n".join(lines)
    )


@dataclass(frozen=True)
class Gap:
    """A scheme's loss minus Pre-Norm's."""

    mean: float
    text: str
    p: float


def _gap(cell: str) -> Gap | None:
    found = re.match(r"[\d.]+, ([-+.\d]+) (\(.*?\)), ([\d.]+)", cell)
    return None if found is None else Gap(float(found[1]), f"{found[1]} {found[2]}", float(found[3]))


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
