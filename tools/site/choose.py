"""The decision guide: a template whose claims and numbers are filled in from the ledger and the stored ladder.

`{claims:ID,ID}` becomes lists: what holds, what does not, what is not settled, and numbers without a verdict. So the guide
cannot say more than the ledger does, whatever a new measurement turns up.
"""

from __future__ import annotations

import re
from pathlib import Path

from tools.site import ladder
from tools.site.ledger import _plain, book, standing

from normlab.experiments.claims.book import Entry

TEMPLATE = Path(__file__).parents[2] / "docs" / "site" / "choose.md"
GROUPS = {
    "Holds": ("confirmed",),
    "Does not hold": ("refuted", "misprinted"),
    "Not settled": ("undecided", "not measured"),
}
LIMITED = "A number with a limit, without a verdict"
WITHDRAWN = "No verdict: the experiment does not carry the sentence"


def page() -> str:
    text = TEMPLATE.read_text(encoding="utf-8").replace("{ladder}", long_training())
    return re.sub(r"\{claims:([^}]+)\}", lambda f: _groups(f[1].split(",")), text)


def in_the_repository(text: str) -> str:
    """The same guide beside the other documents: what is a page of its own on the site has a place in them there."""
    text = re.sub(r"\]\(claims/(?:\d+\.md#[\w-]+|ledger\.md)\)", "](claims/README.md)", text)
    text = re.sub(r"\]\(verdicts/\w+\.md\)", "](diagnose/verdicts.md)", text)
    text = re.sub(r"\[(\w+)\]\(schemes/\w+\.md\)", r"`\1`", text)
    return text.replace("when the site is built", "by `python tools/claims_table.py`")


def long_training() -> str:
    kept, table = ladder.stored(), "results/README.md#the-ladder-ten-tokens-a-parameter"
    return f"{kept.correction}\n\n{ladder.FAIR_DIFFERENCES}\n\n{kept.answer}\n\n[The whole table]({table})."


def _groups(ids: list[str]) -> str:
    entries = [book()[id] for id in ids]
    titled = {title: [e for e in entries if e.decision.verdict in verdicts and not e.claim.limit]
              for title, verdicts in GROUPS.items()}  # fmt: skip
    titled[LIMITED] = [e for e in entries if e.claim.limit]
    titled[WITHDRAWN] = [e for e in entries if e.claim.withdrawn]
    return "\n\n".join(f"**{title}**\n\n" + "\n".join(_line(e) for e in own) for title, own in titled.items() if own)


def _line(entry: Entry) -> str:
    claim = entry.claim
    return f"- {_plain(claim.statement)} [{claim.id}](claims/{claim.seed}.md#{claim.id}): {standing(entry)}"
