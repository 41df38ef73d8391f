import csv

import pytest

from normlab.experiments.lengthgen.page import build, to_csv
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.lengthgen.result import Arm, LengthGeneralization, RunNote, ScoreRow, Spread, SummaryRow
from normlab.experiments.runs.records import LengthScore


def arm(scheme, lr=1e-3):
    return Arm("nope", "none", 8, 8, lr, scheme)


def result(*arms, status="finished"):
    rows = [ScoreRow(one, 0, "raw", n, status, LengthScore(tv=0.1 * n)) for one in arms for n in (1, 2)]
    summary = [SummaryRow(r.arm, "raw", r.length, 1, 0, {"tv": Spread(r.score.tv, 0.0, 1.0)}) for r in rows]
    runs = {"run": RunNote(status, 5, 1.0, 0.1, {}, None, 1, "separate")}
    return LengthGeneralization(
        ["<left out>"], "normlab lengthgen", LengthgenRequest(), rows, summary, [], [], [], runs
    )


def test_every_number_is_in_the_csv():
    rows = list(csv.DictReader(to_csv(result(arm("pre_norm"), arm("keel")).rows).splitlines()))
    assert [(r["scheme"], int(r["length"])) for r in rows] == [(s, n) for s in ("pre_norm", "keel") for n in (1, 2)]
    assert [float(r["tv"]) for r in rows] == pytest.approx([0.1, 0.2, 0.1, 0.2])
    assert rows[0]["auc"] == ""


def test_the_page_draws_what_was_measured_and_warns():
    text = build(result(arm("pre_norm"), status="diverged")).render()
    assert "Total variation to the exact next-token distribution" in text
    assert "Legality AUC (mean over prefixes)" not in text
    assert "1 of 1 runs diverged" in text
    assert "&lt;left out&gt;" in text


def test_the_legend_says_what_varies():
    assert "pre_norm lr" not in build(result(arm("pre_norm"))).render()
    two = build(result(arm("pre_norm"), arm("pre_norm", lr=0.1))).render()
    assert "pre_norm lr 0.001" in two
    assert "pre_norm lr 0.1" in two
