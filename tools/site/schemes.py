"""A page for each scheme, from its card; the picture is its atlas at a small size, measured when the site is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tools.site.drawing import Line, Panel, picture
from tools.site.ledger import about, standing

from normlab.cards import StoredCard, stored_cards
from normlab.experiments.atlas.measure import AtlasEntry, measure
from normlab.experiments.atlas.request import AtlasRequest
from normlab.report.colours import THEORY, scheme_colour, shade
from normlab.report.tables import markdown_table

DEPTH = 12
FAMILIES = {
    "placement": "One stream; the schemes differ in where the norms stand and which gain stands beside them.",
    "sphere": "Everything stays on the unit sphere.",
    "two-stream": "Two streams side by side, one normed and one not.",
    "multi-stream": "n streams that are read, mixed and written with learned weights.",
    "skips": "Something joins the stream a second time.",
    "depth-sources": "A layer reads a weighted sum of what earlier layers put out.",
}


def small_atlas() -> dict[str, AtlasEntry]:
    """Every scheme at initialisation. Times are not shown, so one round of timing is enough."""
    request = AtlasRequest(schemes=("all",), depth=DEPTH, dim=32, init="unit", batch=2, length=32, rounds=1)
    return {entry.scheme: entry for entry in measure(request, quiet=True).entries}


def pages(atlas: Mapping[str, AtlasEntry]) -> Iterator[tuple[str, str]]:
    cards = stored_cards()
    yield "schemes/index.md", _overview(cards)
    for card in cards:
        yield f"schemes/{card.name}.md", _page(card, atlas.get(card.name))


def _overview(cards: tuple[StoredCard, ...]) -> str:
    families = dict.fromkeys(card.family for card in cards)
    parts = [
        f"# {len(cards)} schemes, one equation each",
        "A scheme decides where the norms go and how a layer's output joins the stream. F is a branch (attention or FFN), "
        "N a norm, x the stream, l the layer counted from 1, M the number of branches. `normlab schemes` prints this table.",
    ]
    for family in families:
        rows = [
            {"scheme": f"[{card.name}]({card.name}.md)", "equation": f"`{card.equation}`", "from": _who(card.citation)}
            for card in cards
            if card.family == family
        ]
        parts += [f"## {family.capitalize()}", FAMILIES.get(family, ""), markdown_table(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _who(citation: str) -> str:
    found = re.match(r"(.*?\b(?:19|20)\d\d)", citation)
    return found[1] if found else citation.split(",")[0]


def _page(card: StoredCard, entry: AtlasEntry | None) -> str:
    facts = [
        {"what": "family", "value": f"[{card.family}](index.md#{card.family})"},
        {"what": "citation", "value": _plain(card.citation)},
        {"what": "growth of the stream", "value": _plain(card.growth)},
        {"what": "initialisation", "value": _plain(card.init)},
        {"what": "its own parameters", "value": f"`{card.extra_parameters}`"},
        {"what": "residual traffic", "value": _plain(card.traffic)},
    ]
    if card.branch_parameters != "0":
        facts.append({"what": "parameters it asks of branches", "value": f"`{card.branch_parameters}`"})
    if card.parent:
        facts.append({"what": "at its neutral setting", "value": f"it is [{card.parent}]({card.parent}.md)"})
    parts = [f"# {card.name}", f"```{{.text .equation}}\n{card.equation}\n```"]
    parts += [draw(entry)] if entry is not None else []
    parts += [markdown_table(facts)]
    parts += ["## Traps", "\n".join(f"- {_plain(trap)}" for trap in card.traps)] if card.traps else []
    if card.recipe:
        rows = [{"setting": key, "value": _plain(text)} for key, text in card.recipe.items()]
        parts += ["## As its authors run it", markdown_table(rows)]
    if card.options:
        rows = [{"option": f"`{key}`", "default and meaning": _plain(text)} for key, text in card.options.items()]
        parts += ["## Options", markdown_table(rows)]
    parts += ["## Measured", _measured(card.name)]
    parts += ["## Use it", _use(card.name)]
    return "\n\n".join(parts) + "\n"


def draw(entry: AtlasEntry) -> str:
    """Three small charts. Attention and FFN are two lines, the FFN's the paler one."""
    colour = scheme_colour(entry.scheme)
    pale = shade(colour, 1)

    def both(values: Sequence[float | None]) -> list[Line]:
        return [Line(values[::2], colour, "attention"), Line(values[1::2], pale, "FFN")]

    law = Line(entry.law[:-1:2], THEORY, "predicted", dashed=True)
    panels = [
        Panel("size of the stream (rms)", [law, *both(entry.stream[:-1])], layers=DEPTH),
        Panel("a branch over the stream", both(entry.contribution), layers=DEPTH),
        Panel("share of the gradient", [Line(entry.gradient_share, colour, "share")], layers=DEPTH),
    ]
    what = f"the stream's size goes from {entry.stream[0]:.2g} to {entry.stream[-1]:.2g}"
    drawn = picture(panels, label=f"{entry.scheme} at initialisation over {DEPTH} layers: {what}")
    caption = (
        f"A fresh network of {DEPTH} layers with branches of size one: {what}. Attention in full colour, FFN paler. Dashed: "
        "what independent branches of these sizes would give. From <code>normlab atlas --init unit</code>, smaller."
    )
    return f'<figure class="scheme" markdown="0">{drawn}<figcaption>{caption}</figcaption></figure>'


def _measured(name: str) -> str:
    """The claims that name it; those of today's numbers that choose nothing have no place on a scheme's page."""
    lines = [
        f"- [{e.claim.id}](../claims/{e.claim.seed}.md#{e.claim.id}) {_plain(e.claim.statement)} *{standing(e)}*"
        for e in about(name)
    ]
    if not lines:
        return "Nothing is stored: no claim names it."
    return "Claims of the field that name it:\n\n" + "\n".join(lines)


def _use(name: str) -> str:
    shape = f'vocab_size=256, dim=64, depth=6, heads=4, scheme="{name}"'
    against = "pre_norm,post_norm" if name == "pre_norm" else f"pre_norm,{name}"
    return (
        f"```python\nimport normlab as nl\n\nmodel = nl.Transformer(nl.TransformerConfig({shape}))\n```\n\n"
        f"```\nnormlab schemes show {name}\nnormlab cite {name}\n"
        f"normlab compare --schemes {against} --depth 12 --budget 10m\n```"
    )


def _plain(text: str) -> str:
    return re.sub(r"([*_<>|])", r"\\\1", text)
