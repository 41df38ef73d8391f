"""A page for each verdict of `normlab diagnose`: what it means, how it looks, what to do. From the rules' own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import getdoc, getsource

from normlab.probes.judge.advice import TEXTS, advise
from normlab.probes.judge.rules import RULES, judge
from normlab.probes.judge.verdicts import Verdict
from normlab.probes.show.words import SEVERITY, subject, verdict_name
from normlab.report.tables import markdown_table
from tests.probes.judge.test_planted import CASES


def pages() -> Iterator[tuple[str, str]]:
    rows = [
        {"verdict": f"[{verdict_name(id)}]({id}.md)", "about": subject(words.subject), "why it matters": words.why}
        for id, words in TEXTS.items()
    ]
    yield (
        "verdicts/index.md",
        (
            "# What each verdict means\n\n"
            f"`normlab diagnose` knows {len(rows)} verdicts. A *fault* or a *warning* accuses a place of the model. "
            "A *note* says what is "
            "worth knowing and accuses nobody. Every verdict prints the number that it judged.\n\n"
            + markdown_table(rows)
            + "\n"
        ),
    )
    for id in TEXTS:
        yield f"verdicts/{id}.md", _page(id)


def _page(id: str) -> str:
    words, example = TEXTS[id], planted(id)
    normal = (example.normal if example is not None else "") or words.normal
    parts = [f"# {verdict_name(id).capitalize()}", f"`{id}`, about the {subject(words.subject)}."]
    parts += ["## What it means", _sentence(words.why)]
    parts += ["## How it looks"]
    if example is not None:
        parts += [f"> **{SEVERITY[example.severity]}: {verdict_name(id)}.** {_plain(example.title)}"]
        parts += [
            f"This is what `normlab diagnose` says of a table in which the fault was planted. It judged {example.value:.3g}."
        ]
        if example.limit is not None:
            parts[-1] += f" The limit is {example.limit:.3g}."
    seen = found_by(id)
    parts += [f"The rule: {_sentence(seen)}"] if seen else []
    parts += [f"Normal: {_sentence(normal)}"] if normal else []
    parts += [
        "## What to do",
        _sentence(advise(id)),
        "[All verdicts](index.md) · [Diagnose your model](../tutorials/diagnose.md)",
    ]
    return "\n\n".join(parts) + "\n"


def planted(id: str) -> Verdict | None:
    """The verdict on a table that was written by hand to have this fault."""
    if id not in CASES:
        return None
    return next((verdict for verdict in judge(CASES[id]()) if verdict.id == id), None)


def found_by(id: str) -> str:
    """The first line of the rule that finds it."""
    rule = next((rule for rule in RULES if f'"{id}"' in getsource(rule)), None)
    return "" if rule is None else (getdoc(rule) or "").split("\n\n")[0].replace("\n", " ")


def _sentence(text: str) -> str:
    whole = text[:1].upper() + text[1:]
    return _plain(whole if whole.endswith((".", ":")) else f"{whole}.")


def _plain(text: str) -> str:
    """Commands as code, and nothing that Markdown would read as its own."""
    parts = re.split(r"(normlab \w+(?: -\S+(?: [^\s;.]+)?)+)", text)
    return "".join(f"`{part}`" if at % 2 else re.sub(r"([*_<>|])", r"\\\1", part) for at, part in enumerate(parts))
