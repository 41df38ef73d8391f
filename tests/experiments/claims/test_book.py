"""The committed ledger: every verdict follows from its evidence, and nulls behave."""

import json
import re

import pytest

import normlab as nl
from normlab.errors import ConfigError, InputError
from normlab.experiments.claims import book
from normlab.experiments.claims.bench import Bench, Findings, Measure, affordable, carry_out, find_measure, measures
from normlab.experiments.claims.decide import decide
from normlab.experiments.claims.evidence import Evidence, number
from normlab.experiments.claims.ledger import find, ledger, pages
from normlab.experiments.claims.nulls import differences


@pytest.fixture(scope="module")
def committed():
    return book.read_all()


@pytest.fixture(scope="module")
def whole():
    return nl.claims()


def test_verdicts_are_recomputed_from_the_files(committed, whole):
    again = {d.claim.id: d.verdict for rows in pages().values() for d in decide(rows, committed)}
    assert again == {entry.claim.id: entry.decision.verdict for entry in whole.entries}
    assert sum(whole.counts.values()) == len(ledger())


def test_evidence_was_measured_under_the_criterion_in_force_or_the_row_says_that_it_was_touched(whole):
    for entry in whole.entries:
        changed = [w for w in entry.warnings if "criterion" in w]
        assert not changed or "TOUCHED AFTER NUMBERS WERE SEEN" in entry.claim.note, (entry.claim.id, changed)


def test_evidence_says_where_it_comes_from(committed):
    for found in committed.values():
        assert found.command.startswith("normlab claims run"), found.name
        assert all([found.commit, found.version, found.seeds]), found.name


def test_the_ledger_says_what_is_lacking(whole):
    """What an issue of ours asks of `normlab claims --json`."""
    rows = {entry.claim.id: entry.to_plain() for entry in whole.entries}
    assert whole.counts["not measured"] <= 12
    assert whole.counts["undecided"] <= 30
    for id, row in rows.items():
        assert row["criterion"], id
        assert bool(row["reason"]) == (row["verdict"] == "not measured"), id
        assert bool(row["budget"]) == (row["verdict"] == "undecided"), id
        if row["verdict"] == "undecided":
            assert re.search(r"about [\d.]+ (hours|minutes) on one core", str(row["budget"])), (id, row["budget"])
            assert row["evidence"], id
            assert row["low"] is not None or "no number" in str(row["budget"]), id


def test_every_claim_about_two_arms_has_its_null(committed, whole):
    for entry in whole.entries:
        for leaf in differences(entry.claim):
            assert leaf.null_name in committed, (entry.claim.id, leaf.null_name)
        assert not [w for w in entry.warnings if "no null" in w], entry.claim.id


def test_nulls_are_silent(whole):
    for entry in whole.entries:
        for check in entry.nulls:
            assert check.false_alarms <= 0.05, (entry.claim.id, check.sentence)
            assert check.seeds >= 20
            assert check.splits >= 200


def test_every_file_serves_a_claim_or_is_a_null(committed):
    used = {claim.evidence for claim in ledger().values()}
    used |= {leaf.null_name for claim in ledger().values() for leaf in differences(claim)}
    assert not set(committed) - used


def test_measurements_have_claims():
    used = {claim.evidence for claim in ledger().values()}
    used |= {leaf.null_name for claim in ledger().values() for leaf in differences(claim)}
    assert not set(measures()) - used


def test_a_cheap_claim_measured_again_holds(tmp_path):
    again = book.run(find("002-17"), folder=tmp_path)
    assert again.holds
    assert "the verdict holds" in again.answer
    assert json.loads((tmp_path / "002-17.json").read_text())["criteria"]["002-17"].startswith("every gap at 2s")


def test_a_budget_that_is_too_small(tmp_path):
    again = book.run(find("003-16"), budget=1.0, folder=tmp_path)
    assert again.evidence is None
    assert again.now.verdict == "undecided"
    assert "1 s is too little: 2 seeds take about" in again.answer
    with pytest.raises(ConfigError, match="a time like 90s, 30m or 2h"):
        book.seconds("soon")
    assert [book.seconds(text) for text in ("90", "1.5m", "2h")] == [90, 90, 7200]


def test_budgets_buy_seeds():
    found = Measure("x", lambda bench: Findings([]), seeds=5, seconds=10.0, least=2)
    assert [affordable(found, budget) for budget in (None, 100.0, 35.0, 15.0)] == [5, 5, 3, 0]


def test_the_harness_keeps_the_origin(tmp_path):
    def function(bench: Bench) -> Findings:
        return Findings([number("m", [float(seed) for seed in bench.seeds])], {"d": 3}, seconds=7.0)

    made = carry_out(Measure("x", function, 3, 1.0, 2), seeds=3, criteria={"000-00": "m is small"}, folder=tmp_path)
    assert made.seeds == (0, 1, 2)
    assert made.seconds == 7.0
    assert made.criteria == {"000-00": "m is small"}
    assert made.version == nl.__version__
    with pytest.raises(nl.NormlabError, match="nothing measures"):
        find_measure("nonsense")


def test_old_evidence_is_told(committed, tmp_path):
    name = "002-17"
    old = Evidence(name, committed[name].measurements, (0,), criteria={}, version="0.0.1", commit="x", command="y")
    entry = book.claims(evidence={**committed, name: old})[name]
    assert any("from normlab 0.0.1" in w for w in entry.warnings)
    assert any("no criterion was on file" in w for w in entry.warnings)
    with pytest.raises(InputError, match="there is no evidence"):
        book.claims(evidence=tmp_path / "none")
    with pytest.raises(ConfigError, match="unknown seed"):
        book.claims(evidence=committed, nulls=False).of_seed("009")
