"""The decision guide: a template whose claims and table cells are filled in from the ledger and the stored comparison.

`{claims:ID,ID}` becomes three lists: what holds, what does not, and what is not settled. So the guide cannot say more than
the ledger does, whatever a new measurement turns up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.site import ladder
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
    text = text.replace("{beats}", beats(cells)).replace("{ladder}", long_training())
    text = re.sub(r"\{table:(\w+):(\d+)\}", lambda f: _cell(cells[f[1]][f[2]]), text)
    text = re.sub(r"\{time:(\w+)\}", lambda f: cells[f[1]]["step time"].split(" ")[0], text)
    return re.sub(r"\{claims:([^}]+)\}", lambda f: _groups(f[1].split(",")), text)


def in_the_repository(text: str) -> str:
    """The same guide beside the other documents: what is a page of its own on the site has a place in them there."""
    text = re.sub(r"\]\(claims/(?:\d+\.md#[\w-]+|ledger\.md)\)", "](claims/README.md)", text)
    text = re.sub(r"\]\(verdicts/\w+\.md\)", "](diagnose/verdicts.md)", text)
    text = re.sub(r"\[(\w+)\]\(schemes/\w+\.md\)", r"`\1`", text)
    return text.replace("when the site is built", "by `python tools/claims_table.py`")


@dataclass(frozen=True)
class Gap:
    """A scheme's loss minus Pre-Norm's at one depth, and what its step costs."""

    scheme: str
    layers: int
    mean: float
    interval: str
    p: float
    time: str


def certain(cells: dict[str, dict[str, str]]) -> list[Gap]:
    """What the stored comparison establishes, after Holm's correction."""
    found = []
    for name, row in cells.items():
        for layers in (key for key in row if key.isdigit()):
            gap = re.match(r"[\d.]+, ([-+.\d]+) \((.*?)\), ([\d.]+)", row[layers])
            if gap is not None and float(gap[3]) < LIMIT:
                time = row["step time"].split(" ")[0]
                found.append(Gap(name, int(layers), float(gap[1]), gap[2], float(gap[3]), time))
    return found


def beats(cells: dict[str, dict[str, str]]) -> str:
    """Who is established as better and worse than Pre-Norm in the stored comparison, with what a step costs."""
    gaps = certain(cells)
    lines = []
    for layers in sorted({int(key) for row in cells.values() for key in row if key.isdigit()}):
        here = [gap for gap in gaps if gap.layers == layers]
        better = [
            f"**{gap.scheme} is better**, {gap.mean:+.3f} ({gap.interval}) nats, p {gap.p:g}; its step takes {gap.time} "
            "times as long"
            for gap in here if gap.mean < 0
        ] or ["no scheme is established as better"]  # fmt: skip
        worse = [gap.scheme for gap in here if gap.mean > 0]
        parts = [*better, f"worse for certain: {', '.join(worse)}"] if worse else better
        lines.append(f"- At {layers} layers {'; '.join(parts)}.")
    leads = ", ".join(f"{gap.scheme} at {gap.layers} layers" for gap in gaps if gap.mean < 0)
    return (
        f"**In the first 200 steps, of {len(cells)} schemes: {leads or 'none'}.** The [stored comparison](results/README.md) "
        "trains each at its own best learning rate, three seeds, p after Holm's correction:\n\n" + "\n".join(lines)
    )


def long_training() -> str:
    found, table = ladder.stored(), "results/README.md#the-ladder-ten-tokens-a-parameter"
    return f"{found.answer}\n\n{found.control} {found.higher} [The whole table]({table})."


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
