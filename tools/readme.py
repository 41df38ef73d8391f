"""Fill the README's generated parts: the table of families, the findings, and the outputs of its commands.

python tools/readme.py                       # families, findings, who beats Pre-Norm: from cards, ledger and results
python tools/readme.py diagnose out.txt      # the output of a command, as it was printed into a file
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools.site

from tools.site import choose, ladder
from tools.site.schemes import results_table

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
# Claims that hold, in words for a reader with a minute; {0} is the number with its interval.
FINDINGS = {
    "001-17": "**Late layers start small.** In a fresh Pre-Norm model of 96 layers the last one adds {0} of the stream",
    "001-05": "**Post-Norm needs warm-up.** At 12 layers warm-up lowers its best loss by {0} nats",
    "002-02": "**A norm behind attention helps with length.** Beyond the training length the error (total variation, 0 to 1) "
    "falls by {0}",
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
    return "\n".join(
        f"- {words.format(number(book[id]))} (claim {id}, {seeds(book[id])})." for id, words in FINDINGS.items()
    )


def beats() -> str:
    """Who leads Pre-Norm in long training and in its first steps; the guide tells the rest."""
    long = ladder.stored()
    cells = results_table()
    found = [
        f"`{gap.scheme}` at {gap.layers} layers, {gap.mean:+.3f} ({gap.interval}) nats, with steps {gap.time} times as long"
        for gap in choose.certain(cells) if gap.mean < 0
    ]  # fmt: skip
    first = f"Of {len(cells)} schemes after 200 steps, surely lower: {'; '.join(found) or 'none'} (n = 3)."
    return f"{long.answer}\n\n{long.control}\n{first}"


def number(entry: Entry) -> str:
    """`0.11 (0.103 to 0.116)`; only of what the evidence confirms."""
    lead = entry.decision.leading
    if entry.decision.verdict != "confirmed" or lead is None:
        raise SystemExit(f"{entry.claim.id} is {entry.decision.verdict}: choose another finding for the README")
    low, high = sorted((abs(lead.low), abs(lead.high)))  # the words say in which direction
    return f"{abs(lead.estimate):.3g} ({low:.3g} to {high:.3g})"


def seeds(entry: Entry) -> str:
    evidence = entry.decision.evidence
    return f"n = {len(evidence.seeds) if evidence else 0}"


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
