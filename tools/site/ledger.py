"""Pages of the claims, and claims inside sentences: `claim 002-02` becomes a link with the verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import normlab as nl
from normlab.experiments.claims.book import Book, Entry
from normlab.report.tables import markdown_table

SUBJECTS = {
    "000": "Attention Residuals and the dilution of Pre-Norm",
    "001": "Pre-Norm, Post-Norm and training",
    "002": "Length, averages and exact languages",
    "003": "Norms as speed regulators on the sphere",
    "004": "The classic account of Pre-LN and Post-LN",
}


@cache
def book() -> Book:
    return nl.claims()


def linked(text: str, *, up: str = "") -> str:
    """`claim 002-02` becomes a link to it, with its verdict; one that was corrected, or has a limit, says that instead."""

    def replaced(found: re.Match[str]) -> str:
        entry = book()[found[1]]
        word = "corrected" if entry.claim.corrected else "with a limit" if entry.claim.limit else entry.decision.verdict
        return f"[{found[1]}]({up}claims/{entry.claim.seed}.md#{found[1]}), {word}"

    return re.sub(r"\bclaim (\d{3}-\d{2}[a-z]?)\b", replaced, text)


def outcome(entry: Entry) -> str:
    """`confirmed, -0.072 (-0.1 to -0.045), n = 15, toy task`."""
    decision = entry.decision
    lead = decision.leading
    if lead is None or decision.evidence is None:
        return decision.verdict
    return f"{decision.verdict}, {measured(entry)}"


def measured(entry: Entry) -> str:
    """`-0.072 (-0.1 to -0.045), n = 15, toy task`."""
    lead, evidence = entry.decision.leading, entry.decision.evidence
    if lead is None or evidence is None:
        raise ValueError(f"{entry.claim.id} has no number")
    return f"{lead.number}, n = {len(evidence.seeds)}, {entry.kind}"


def standing(entry: Entry) -> str:
    """What a reader who chooses is told of it: no verdict where it was withdrawn, or where its number has a limit."""
    if entry.claim.limit:
        return f"{measured(entry)}. Limit: {_plain(entry.claim.limit)}."
    return f"no verdict, {measured(entry)}" if entry.claim.withdrawn else outcome(entry)


def about(scheme: str) -> list[Entry]:
    """The claims whose sentence or criterion names this scheme."""
    word = re.compile(rf"\b{re.escape(scheme)}\b")
    return [e for e in book().entries if word.search(f"{e.claim.statement} {e.claim.criterion.text()}")]


def pages() -> Iterator[tuple[str, str]]:
    """(path, Markdown) of the ledger: an overview, and a page for each seed."""
    whole = book()
    seeds = sorted({entry.claim.seed for entry in whole.entries})
    rows = [
        {
            "page": f"[{SUBJECTS.get(seed, seed)}]({seed}.md)",
            **whole.of_seed(seed).counts,
        }
        for seed in seeds
    ]
    yield (
        "claims/ledger.md",
        (
            f"# The claims of the field\n\n**{whole.answer}** A verdict is computed from stored evidence by a criterion; a "
            "claim whose criterion was changed after numbers were seen says so. *No verdict* means that the experiment "
            "does not carry the sentence.\n\n"
            f"{markdown_table(rows)}\n\nHow a claim is decided, and how to add one: [How claims are decided](README.md). "
            "The same table in a terminal: `normlab claims`.\n"
        ),
    )
    for seed in seeds:
        yield f"claims/{seed}.md", _seed_page(seed)


def _seed_page(seed: str) -> str:
    part = book().of_seed(seed)
    rows = [
        {"claim": f"[{e.claim.id}](#{e.claim.id})", "statement": e.claim.statement, "verdict": outcome(e)}
        for e in part.entries
    ]
    return (
        "\n\n".join(
            [
                f"# {SUBJECTS.get(seed, seed)}",
                f"**{part.answer}** The number is the estimate with its 95 % interval; n counts seeds, or exact evaluations.",
                markdown_table(rows),
                *(_entry(entry) for entry in part.entries),
            ]
        )
        + "\n"
    )


def _entry(entry: Entry) -> str:
    claim, decision = entry.claim, entry.decision
    lines = [
        f"## {claim.id} {{#{claim.id}}}",
        f"> {_plain(claim.statement)}",
        f"**{decision.verdict.capitalize()}.** {_plain(decision.sentence)}",
        f"- Source: {_plain(claim.source)}\n- Criterion: {_plain(claim.criterion.text())}\n"
        f"- Measure it again: `{claim.command}`"
        + (f"\n- See it: `{claim.look}`" if claim.look.startswith("normlab") else ""),
    ]
    lines += [f"**Limit:** {_plain(claim.limit)}."] if claim.limit else []
    if claim.corrected is not None:
        lines += ["\n".join(f"- **{heading}.** {_plain(words)}" for heading, words in claim.corrected.lines.items())]
    lines += [f"*{_plain(claim.note)}*"] if claim.note else []
    lines += [f"Null: {_plain(check.sentence)}" for check in entry.nulls]
    lines += [f"!!! warning\n    {_plain(warning)}" for warning in entry.warnings]
    return "\n\n".join(lines)


def _plain(text: str) -> str:
    """Words that Markdown would read as its own."""
    return re.sub(r"([*_<>\[\]|])", r"\\\1", text)
