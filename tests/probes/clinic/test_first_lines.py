"""The graded first lines: the cases are those that are drawn, and the counts that the docs quote are those of the file."""

import csv
from collections import Counter
from pathlib import Path

from tests.probes.clinic.first_lines import drawn, healthy

ROWS = list(csv.DictReader((Path(__file__).parent / "first_lines.csv").read_text(encoding="utf-8").splitlines()))


def test_the_graded_cases_are_those_that_are_drawn():
    assert [row["case"] for row in ROWS] == [case.name for case in drawn()]
    assert len(list(healthy())) == 36


def test_the_counts_that_the_docs_quote():
    before, now = Counter(row["grade"] for row in ROWS), Counter(row["grade now"] for row in ROWS)
    assert before == {"right": 37, "partly": 8, "wrong": 8, "no cause": 2, "not noticed": 5}
    assert now == {"right": 37, "partly": 3, "wrong": 2, "no cause": 12, "not noticed": 6}
    lost = [row["case"] for row in ROWS if row["grade"] != "not noticed" == row["grade now"]]
    assert lost == ["norms of two branches exchanged in post-small-seed1@600"]
