"""Put the site together, then build it:

python -m tools.site              # build/docs (Markdown) and build/site (HTML); strict: a warning is an error
python -m tools.site --no-run     # without executing the tutorials, for a quick look
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml
from tools.site import choose, ledger, notebooks, reference, schemes, verdicts

ROOT = Path(__file__).parents[2]
OUT, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
# Root file -> page. Links between them are rewritten.
ROOT_PAGES = {
    "CONTRIBUTING.md": "extend.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "LOG.md": "log.md",
}
TEXTS = (".txt", ".json", ".csv")


def assemble(out: Path, *, run: bool) -> None:
    if out.exists():
        shutil.rmtree(out)
    shutil.copytree(ROOT / "docs", out, ignore=shutil.ignore_patterns("site", "*.py", "evidence"))
    for page in out.rglob("*.md"):
        text = page.read_text(encoding="utf-8").replace("](../CONTRIBUTING.md)", "](extend.md)")
        up = "../" * (len(page.relative_to(out).parts) - 1)
        write(
            page,
            ledger.linked(text.replace("](../LOG.md)", "](log.md)").replace("](../README.md)", "](index.md)"), up=up),
        )
    for name, page in ROOT_PAGES.items():
        write(out / page, relinked((ROOT / name).read_text(encoding="utf-8")))
    book = ledger.book()
    home = (ROOT / "docs" / "site" / "index.md").read_text(encoding="utf-8")
    cards = schemes.stored_cards()
    write(out / "index.md", home.format(count=len(cards), answer=book.answer))
    write(out / "choose.md", choose.page())
    (out / "diagnose" / "verdicts.md").unlink()  # each verdict has a page here
    for page in (out / "diagnose").glob("*.md"):
        page.write_text(
            page.read_text(encoding="utf-8").replace("](verdicts.md)", "](../verdicts/index.md)"), encoding="utf-8"
        )
    write(out / "diagnose" / "gallery.md", gallery(out / "diagnose"))
    for path, text in (*ledger.pages(), *verdicts.pages(), *schemes.pages(schemes.small_atlas()), *reference.pages()):
        write(out / path, text)
    with tempfile.TemporaryDirectory() as scratch:
        for path in notebooks.tutorials():
            if run:
                notebooks.write(path, out / "tutorials", Path(scratch))
            else:
                write(out / "tutorials" / f"{path.stem}.md", f"# {path.stem}\n\nNot executed.\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def relinked(text: str) -> str:
    """Links of a file at the root, from the root of the site."""
    for name, page in {**ROOT_PAGES, "README.md": "index.md"}.items():
        text = text.replace(f"]({name})", f"]({page})")
    text = re.sub(r"\[([^\]]+)\]\((?:src|tests|tools|examples|benchmarks)/[^)]*\)", r"`\1`", text)
    return text.replace("](docs/", "](")


def gallery(folder: Path) -> str:
    """The models whose diagnoses are stored, each with its first lines."""
    trained = sorted(path for path in folder.glob("*.txt") if path.name != "clinic.txt")
    return (
        "\n\n".join(
            [
                "# Gallery of models",
                "Each report is the command's own output. How to read one: [Diagnose](README.md). All trained ones in one "
                "interactive page: [report.html](report.html).",
                "## Trained models",
                *(_shown(path, folder) for path in trained),
                "## Decoders with several streams",
                "Small decoders in the layout of shipped models, with random weights. They show what is read, "
                "not how the shipped models fare.",
                *(_shown(path, folder) for path in sorted((folder / "streams").glob("*.txt"))),
            ]
        )
        + "\n"
    )


def _shown(path: Path, folder: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()[:14]
    return f"### {path.stem}\n\n```\n" + "\n".join(lines) + f"\n```\n\n[The whole report]({path.relative_to(folder)})"


def nav(out: Path) -> list[object]:
    def section(folder: str, first: Iterable[str] = ()) -> list[str]:
        names = [path.relative_to(out).as_posix() for path in sorted((out / folder).glob("*.md"))]
        head = [f"{folder}/{name}" for name in first]
        return [*head, *(name for name in names if name not in head)]

    families = ["diagnose/families.md"] if (out / "diagnose" / "families.md").exists() else []
    claims = [{ledger.SUBJECTS.get(seed, seed): f"claims/{seed}.md"} for seed in sorted(ledger.SUBJECTS)]
    return [
        {"Home": "index.md"},
        {"Choose a scheme": "choose.md"},
        {"Tutorials": [
            {"Diagnose your model": "tutorials/diagnose.md"},
            {"AttnRes in your own loop": "tutorials/own-loop.md"},
            {"Swap a model": "tutorials/swap.md"},
            {"From equation to network": "tutorials/theory.md"},
        ]},
        {"Schemes": section("schemes", ["index.md"])},
        {"Diagnosis": [
            {"How it works": "diagnose/README.md"}, {"Gallery of models": "diagnose/gallery.md"}, *families,
            {"Verdicts": section("verdicts", ["index.md"])},
        ]},
        {"Claims": [{"The ledger": "claims/ledger.md"}, {"How claims are decided": "claims/README.md"}, *claims]},
        {"Results": [
            {"Comparisons": "results/README.md"}, {"How results are made": "compare.md"},
            {"How a model starts": "start.md"}, {"Length": "lengthgen.md"},
            {"Sphere dynamics": "dynamics.md"}, {"Residuals as they ship": "frontier.md"}, {"Surgery": "surgery.md"},
            {"Speed": "speed.md"}, {"What is checked": "checks.md"}, {"Faults": "faults.md"},
        ]},
        {"API": section("reference", ["index.md"])},
        {"Project": [
            {"How to extend": "extend.md"}, {"Security": "security.md"}, {"Changelog": "changelog.md"},
            {"The lab's diary": "log.md"},
        ]},
    ]  # fmt: skip


def configure(out: Path, site: Path) -> Path:
    config = yaml.safe_load((ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8"))
    config.update(docs_dir=str(out), site_dir=str(site), nav=nav(out))
    shutil.copy(ROOT / "docs" / "site" / "extra.css", out / "extra.css")
    path = out.parent / "mkdocs.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-run", action="store_true", help="do not execute the tutorials")
    given = parser.parse_args()
    assemble(OUT, run=not given.no_run)
    config = configure(OUT, SITE)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(config)]
    done = subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode == 0:
        print(f"page: {(SITE / 'index.html').relative_to(ROOT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
