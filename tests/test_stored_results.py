"""What docs/results keeps comes out again from the runs that it keeps: tables of maps to the letter, verdicts by length."""

import csv
import json
from dataclasses import fields
from pathlib import Path

import pytest

from normlab.experiments.compare.result import RunRow
from normlab.experiments.lengthgen.against_first import against_first
from normlab.experiments.lengthgen.result import Arm, ScoreRow
from normlab.experiments.runs.records import LengthScore
from normlab.experiments.stability import analyse
from normlab.experiments.stability.page import markdown
from normlab.experiments.stability.result import JudgedRun, StabilityMap
from normlab.report.terminal import show
from normlab.stats import holm, paired

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WORDS = {"cell", "scheme", "status", "device", "commit", "verdict", "clock"}


def stored(path, kind):
    """The rows of a cells.csv; columns that an older version did not write are empty."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [kind(**{f.name: typed(f.name, row.get(f.name)) for f in fields(kind)}) for row in rows]


def typed(name, text):
    if name in WORDS or not text:
        return text or None
    return int(text) if text.lstrip("-").isdigit() else float(text)


@pytest.mark.parametrize("name", ["stability", "stability-12", "stability-12-short", "stability-64"])
def test_maps(name):
    runs = stored(RESULTS / name / "cells.csv", JudgedRun)
    groups = sorted({(run.depth, run.scheme) for run in runs})
    regions = [analyse._region([r for r in runs if (r.depth, r.scheme) == key], "") for key in groups]
    found = StabilityMap(
        notes=[], criteria=analyse.CRITERIA, regions=regions, claims=analyse._claims(regions),
        statements=[analyse._sentence(region) for region in regions], cells=runs,
    )  # fmt: skip
    kept = (RESULTS / name / "tables.md").read_text(encoding="utf-8")
    assert kept.endswith(markdown(found))


@pytest.mark.parametrize("path", sorted((RESULTS / "lengthgen").glob("*.json")), ids=lambda p: p.stem)
def test_verdicts_by_length(path):
    """The stored numbers have four digits, so differences agree to that; the verdicts are the same, every one."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for line in kept["rows"]:
        arm = Arm(*(line[f.name] for f in fields(Arm)))
        lists = {name: line[name] for name in ("tv", "loss") if name in line}
        for seed in range(len(next(iter(lists.values())))):
            score = LengthScore(**{name: values[seed] for name, values in lists.items()})
            rows.append(ScoreRow(arm, seed, line["weights"], line["length"], "finished", score))
    found = {(v.arm, v.length): v for v in against_first(rows) if v.weights == "raw"}
    assert len(found) == len(kept["against_first"])
    for line in kept["against_first"]:
        again = found[Arm(*(line[f.name] for f in fields(Arm))), line["length"]]
        # A difference of two rounded numbers may lose its sign where it is smaller than their last digit.
        if min(abs(line["low"]), abs(line["high"])) > 2e-3:
            assert again.verdict == line["verdict"]
        assert again.difference == pytest.approx(line["difference"], abs=2e-3)


def test_the_large_table():
    """Means, differences and Holm's correction of all 26 schemes, from every run that is kept."""
    runs = stored(RESULTS / "table" / "cells.csv", RunRow)
    kept = (RESULTS / "table" / "tables.md").read_text(encoding="utf-8")
    for depth in sorted({run.depth for run in runs}):
        part = kept.split(f"## {depth} layers")[1].split("\n\n")
        table = next(block for block in part if block.startswith("| scheme | loss |")).splitlines()
        head, body = table[0].split(" | "), [line.strip("| ").split(" | ") for line in table[2:]]
        rates = {cells[0]: float(cells[head.index("best lr")]) for cells in body if cells[1] != "-"}
        losses = {
            scheme: {
                r.seed: r.loss for r in runs if (r.depth, r.scheme, r.lr) == (depth, scheme, lr) and r.loss is not None
            }
            for scheme, lr in rates.items()
        }
        base = losses["pre_norm"]
        tests = holm({s: paired([own[k] - base[k] for k in own]) for s, own in losses.items() if s != "pre_norm"})
        for cells in body:
            scheme = cells[0]
            if scheme not in losses:
                continue
            assert show(sum(losses[scheme].values()) / len(losses[scheme])) == cells[1]
            if scheme != "pre_norm" and tests[scheme].p is not None:
                assert show(tests[scheme].mean) == cells[head.index("vs pre_norm")]
                assert show(tests[scheme].adjusted) == cells[head.index("p (Holm)")]


@pytest.mark.parametrize("rung", ["ladder-small", "ladder-inner", "ladder-deep"])
def test_the_ladder_says_what_its_runs_say(rung):
    """Gaps, intervals and Holm's p of the stored rows come out again from the runs, and the table prints them."""
    runs = stored(RESULTS / rung / "cells.csv", RunRow)
    rows = json.loads((RESULTS / rung / "rows.json").read_text(encoding="utf-8"))
    losses = {}
    for run in runs:
        losses.setdefault(run.scheme, {})[run.seed] = run.loss
    base = losses.pop("pre_norm")
    assert {len(seeds) for seeds in losses.values()} == {rows["seeds"]}
    found = holm({scheme: paired([own[seed] - base[seed] for seed in base]) for scheme, own in losses.items()})
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for step in rows["steps"]:
        test = found[step["scheme"]]
        assert (step["gap"], step["low"], step["high"]) == pytest.approx((test.mean, test.low, test.high), abs=1e-9)
        assert step["p"] == pytest.approx(test.adjusted, abs=1e-9)
        assert f"{test.mean:+.3f} ({test.low:+.3f} to {test.high:+.3f})" in page
