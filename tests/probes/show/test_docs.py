"""What docs/diagnose shows comes from code: the table of verdicts, and reports that are drawn again from their JSON."""

import json
import runpy
from pathlib import Path

import pytest

from normlab.probes.diagnosis import Diagnosis
from normlab.probes.judge.advice import TEXTS
from normlab.probes.show.text import as_text

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "diagnose"
TOOL = runpy.run_path(str(ROOT / "tools" / "diagnose_docs.py"))


def test_the_table_of_verdicts_is_the_rules_own():
    """If this fails: python tools/diagnose_docs.py"""
    assert (DOCS / "verdicts.md").read_text() == TOOL["verdicts_page"]()
    assert all(f"`{id}`" in TOOL["verdict_table"]() for id in TEXTS)


@pytest.mark.parametrize("name", [name for name in TOOL["NAMES"].values() if (DOCS / f"{name}.json").is_file()])
def test_the_reports_are_those_of_the_numbers(name):
    stored = Diagnosis.from_dict(json.loads((DOCS / f"{name}.json").read_text()))
    assert (DOCS / f"{name}.txt").read_text() == as_text(stored) + "\n"


def test_the_readme_shows_the_beginning_of_a_real_report():
    shown = (DOCS / "README.md").read_text()
    begin = TOOL["excerpt"]((DOCS / "smollm2.txt").read_text(), 12)
    assert begin in shown


def test_a_page_without_the_place_is_not_filled():
    assert TOOL["fill"]("a\n<!-- x -->\nold\n<!-- end -->", "x", "new") == "a\n<!-- x -->\nnew\n<!-- end -->"
    with pytest.raises(SystemExit, match="0 places"):
        TOOL["fill"]("a", "x", "new")
