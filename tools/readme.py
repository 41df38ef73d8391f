"""Fill the README's generated parts: the table of families, the findings, and the outputs of its commands.

python tools/readme.py                       # families, findings, what was taken back: from cards, ledger and results
python tools/readme.py diagnose out.txt      # the output of a command, as it was printed into a file
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools.site

from tools.site import ladder

import normlab as nl
from normlab.cards import stored_card, stored_cards
from normlab.experiments.claims.book import Entry
from normlab.files import write_text
from normlab.report.tables import markdown_table

README = Path(__file__).parents[1] / "README.md"
LONGEST = 13  # lines of an output
# Family -> what it is, and the scheme whose equation stands for it.
FAMILIES = {
    "placement": ("one stream, norms and gains around a branch", "pre_norm"),
    "sphere": ("everything on the unit sphere", "ngpt"),
    "two-stream": ("a normed and a raw stream", "resi_dual"),
    "multi-stream": ("n streams with learned mixing", "mhc"),
    "skips": ("the embedding or the stream joins again", "lambda_skip"),
    "depth-sources": ("a layer reads all layers before it", "attn_res"),
}
# Claims that hold, in words for a reader with a minute; {0} is the number with its interval, {1} the evidence's kind and n.
FINDINGS = {
    "001-17": "**Starts matter.** With branches of unit size the last of 96 Pre-Norm layers adds {0} "
    "of the stream (claim 001-17, {1}). With GPT-2's initialisation the first and the last add 0.09 alike",
    "002-01": "**Attention averages.** What one token adds to the answer falls with the length s like 1/s to the power {0} "
    "(claim 002-01, {1})",
}


def families() -> str:
    """One row for each family of the registry."""
    cards = stored_cards()
    names = dict.fromkeys(card.family for card in cards)
    rows = []
    for family in names:
        words, example = FAMILIES[family]
        own = [card.name for card in cards if card.family == family]
        shown = ", ".join(f"`{name}`" for name in own[:4]) + (f" and {len(own) - 4} more" if len(own) > 4 else "")
        equation = stored_card(example).equation.split("; ")[0]
        rows.append({"family": f"{family}: {words}", "for example": f"`{equation}`", "schemes": shown})
    return markdown_table(rows)


def findings() -> str:
    book = nl.claims()
    return "\n".join(f"- {words.format(number(book[id]), evidence(book[id]))}." for id, words in FINDINGS.items())


def beats() -> str:
    """Whether a placement beats Pre-Norm, and what was said before."""
    long = ladder.stored()
    same = ", ".join(step.words for step in long.groups["Same start as Pre-Norm"])
    return (
        "None has been shown to, and models of 84,000 parameters cannot decide it.\n"
        f"{long.correction}\n\n"
        f"Where both arms start alike (n = {long.seeds}, {ladder.KIND}), nats against Pre-Norm: {same}."
    )


def number(entry: Entry) -> str:
    """`0.11 (0.103 to 0.116)`; only of what the evidence confirms."""
    lead = entry.decision.leading
    if entry.decision.verdict != "confirmed" or lead is None:
        raise SystemExit(f"{entry.claim.id} is {entry.decision.verdict}: choose another finding for the README")
    low, high = sorted((abs(lead.low), abs(lead.high)))  # the words say in which direction
    return f"{abs(lead.estimate):.3g} ({low:.3g} to {high:.3g})"


def evidence(entry: Entry) -> str:
    """`random networks, n = 10`."""
    kept = entry.decision.evidence
    return f"{entry.kind}, n = {len(kept.seeds) if kept else 0}"


def fill(text: str, mark: str, content: str) -> str:
    """Put content between <!-- MARK --> and <!-- end -->."""
    pattern = re.compile(rf"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda found: f"{found[1]}{content}\n{found[2]}", text)
    if count != 1:
        raise SystemExit(f"the README has {count} places <!-- {mark} -->, and one was expected")
    return filled


def output(printed: str) -> str:
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    cut = lines[:LONGEST] + (["..."] if len(lines) > LONGEST else [])
    return "```\n" + "\n".join(cut) + "\n```"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    if len(sys.argv) == 3:
        text = fill(text, f"output: {sys.argv[1]}", output(Path(sys.argv[2]).read_text(encoding="utf-8")))
    for mark, content in {"families": families(), "findings": findings(), "beats": beats()}.items():
        text = fill(text, mark, content)
    write_text(README, text)


if __name__ == "__main__":
    main()
