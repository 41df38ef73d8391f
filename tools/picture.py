"""A picture of a report, for the documentation: its first screen, or one plot by the first words of its caption.

    python tools/picture.py runs/demo/report.html docs/images/compare.png
    python tools/picture.py runs/demo/report.html magnitude.png --plot "Magnitude of what each branch reads"

Needs playwright and a Chromium (`pip install -e '.[browser]'`; CHROMIUM names another one).
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--plot", default="", help="the first words of the plot's caption; default: the first screen")
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        size = {"width": given.width, "height": given.height}
        tab = browser.new_page(viewport=size, color_scheme="dark" if given.dark else "light")
        tab.goto(given.page.resolve().as_uri())
        tab.wait_for_function("document.documentElement.dataset.ready === 'yes'")
        if given.plot:
            figure = tab.locator("figure", has=tab.locator(f'.plot[aria-label^="{given.plot}"]')).first
            figure.scroll_into_view_if_needed()
            figure.screenshot(path=given.out)
        else:
            tab.screenshot(path=given.out)
        browser.close()


if __name__ == "__main__":
    main()
