"""Every kind of page at both widths, light and dark, under docs/images/pages; says which labels are cut or overlap.

    python tools/screenshots.py                 makes the pages first (some minutes; a second time only what is missing)
    python tools/screenshots.py demo atlas      some of them
    python tools/screenshots.py --check         no pictures, only what is wrong with the labels

Needs playwright and a Chromium (`pip install -e '.[browser]'`; CHROMIUM names another one).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
WORK = ROOT / "build" / "pages"
OUT = ROOT / "docs" / "images" / "pages"
WIDTHS = {"wide": (1440, 900), "phone": (390, 844)}
SMALL = ["--dim", "16", "--heads", "2", "--batch", "4", "--length", "16"]
# What is run, and the page that it leaves.
PAGES = {
    "demo": (["demo"], "report.html"),
    "atlas": (["atlas", "--schemes", "all", "--depth", "12", "--dim", "64"], "report.html"),
    "compare": (["compare", "--schemes", "pre_norm,post_norm,peri_norm,ln_scaling,block_attn_res", "--depth", "4", *SMALL,
                 "--tokens", "51200", "--seeds", "3", "--lrs", "3e-3,1e-2"], "report.html"),
    "stability": (["stability", "--schemes", "pre_norm,post_norm", "--depth", "4", *SMALL, "--steps", "300"], "report.html"),
    "lengthgen": (["lengthgen", "--task", "tomita", "--steps", "200", "--seeds", "3"], "report.html"),
    "dynamics": (["dynamics"], "dynamics.html"),
    "claims": (["claims"], "index.html"),
    "seesaw": (["theory", "seesaw"], "seesaw.html"),
    "contributions": (["theory", "contributions"], "contributions.html"),
    "signal": (["theory", "signal", "--seeds", "2"], "signal.html"),
    "mean-field": (["theory", "mean-field", "--draws", "4"], "mean-field.html"),
    "bridge": (["theory", "bridge", "--schemes", "pre_norm,post_norm,peri_norm,ngpt", "--dim", "64"], "bridge.html"),
    "change": (["diagnose", *(str(WORK / "compare" / f"pre_norm-l4-lr0.01-s{seed}") for seed in (0, 1))], "report.html"),
}  # fmt: skip
# Pages that another command leaves beside its own.
FOUND = {"diagnose": ("demo", "diagnosis.html"), "claims-000": ("claims", "seed-000.html")}
STORED = {"models": ROOT / "docs" / "diagnose" / "report.html"}
NEEDS = {"change": "compare"}


def page_of(name: str) -> Path:
    """The page, made if it is not there."""
    from normlab.cli import run

    if name in STORED:
        return STORED[name]
    if name in NEEDS:
        page_of(NEEDS[name])
    owner, file = FOUND.get(name, (name, PAGES.get(name, ([], ""))[1]))
    path = WORK / owner / file
    if not path.exists():
        command, _ = PAGES[owner]
        with contextlib.redirect_stdout(io.StringIO()):
            code = run([*command, "--out", str(WORK / owner)])
        if code:
            raise SystemExit(f"normlab {' '.join(command)} ended with {code}")
    return path


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[str]:
    """The address of `normlab watch` over a folder."""
    command = [sys.executable, "-m", "normlab", "watch", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*PAGES, *FOUND, *STORED, 'watch'])}; default: all")
    parser.add_argument("--check", action="store_true", help="make no pictures")
    parser.add_argument("--whole", action="store_true", help="the whole page, not the first screen")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from tests.labels import trouble

    given.out.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    wrong = 0
    with sync_playwright() as playwright, contextlib.ExitStack() as held:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in given.names or [*PAGES, *FOUND, *STORED, "watch"]:
            if name == "watch":
                page_of("demo")
                address = held.enter_context(watched(WORK / "demo" / "training"))
            else:
                address = page_of(name).as_uri()
            for size, (width, height) in WIDTHS.items():
                for theme in ("light", "dark"):
                    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
                    tab.goto(address)
                    tab.wait_for_selector("html[data-ready=yes]", state="attached")
                    for sentence in dict.fromkeys(trouble(tab)):
                        wrong += 1
                        print(f"{name}, {size}, {theme}: {sentence}")
                    if not given.check:
                        path = given.out / f"{name}-{size}-{theme}.jpg"
                        tab.screenshot(path=path, type="jpeg", quality=50, full_page=given.whole)
                        print(f"{path.relative_to(given.out)}: {path.stat().st_size // 1024} kB")
                    tab.close()
        browser.close()
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
