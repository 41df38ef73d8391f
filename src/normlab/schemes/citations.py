"""The cards' citations as BibTeX: who, when, what and the arXiv number, as far as a card names them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from normlab.schemes.names import parse_schemes
from normlab.schemes.registry import lookup

# "Authors 2024, Title, arXiv 2401.00001 (a remark); another"
_FORM = re.compile(
    r"(?P<who>[^,;]*?) (?P<year>(?:19|20)\d\d)(?:, (?P<title>.*?))??(?:, arXiv (?P<arxiv>\d{4}\.\d{4,5}))"
)


@dataclass(frozen=True)
class CitationEntry:
    scheme: str
    key: str
    citation: str
    bibtex: str


def entry(name: str) -> CitationEntry:
    """The BibTeX of one scheme; without a paper, a @misc with the card's own words."""
    citation = lookup(name).card.citation
    found = _FORM.search(citation)
    if found is None:
        return CitationEntry(
            name, name, citation, f"@misc{{{name},\n  title = {{{name}}},\n  note = {{{_safe(citation)}}}\n}}"
        )
    who, year, title, arxiv = found.group("who", "year", "title", "arxiv")
    words = re.findall(r"[A-Za-z]+", who.replace("et al.", "").replace(" and ", " "))
    key = f"{(words or [name])[0].lower()}{year}{name.replace('_', '')}"
    people = re.sub(r",? et al\.$", " and others", who)
    lines = [
        *(f"  author = {{{_safe(people)}}}", f"  title = {{{_safe(title or name)}}}", f"  year = {{{year}}}"),
        *(f"  eprint = {{{arxiv}}}", "  archivePrefix = {arXiv}", f"  note = {{{_safe(citation)}}}"),
    ]
    return CitationEntry(name, key, citation, f"@misc{{{key},\n" + ",\n".join(lines) + "\n}")


def entries(schemes: Iterable[str]) -> list[CitationEntry]:
    """One for each scheme, in order; names, families and `all` as everywhere."""
    return [entry(choice.config.name) for choice in parse_schemes(list(schemes))]


def _safe(text: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", text)
