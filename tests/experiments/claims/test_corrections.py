"""What was taken back: each row shows what was printed, why it was wrong, what stands and what would decide it."""

import json
import re

import pytest
from tools import claims_table
from tools.site import ledger as site

import normlab as nl
from normlab.cli import run
from normlab.experiments.claims import book
from normlab.experiments.claims.claim import Claim, Correction
from normlab.experiments.claims.criteria import Inside
from normlab.experiments.claims.decide import NOT_CARRIED, decide
from normlab.experiments.claims.evidence import Evidence, number
from normlab.experiments.claims.ledger import ledger
from normlab.experiments.claims.page import write_pages
from normlab.stats import paired

CORRECTED = ("000-05", "000-19", "000-22", "001-10", "001-23", "002-13", "002-24", "003-18", "004-09")
RENAMED = ("002-13",)  # its evidence carries the new sentence, so it has a verdict
HEADINGS = ("Printed until 2026-11-19", "Why that was wrong", "What stands now", "What would decide it")


@pytest.fixture(scope="module")
def whole():
    return nl.claims()


def test_these_rows_and_no_others_are_corrected(whole):
    assert tuple(id for id, claim in ledger().items() if claim.corrected) == CORRECTED
    withdrawn = [entry.claim.id for entry in whole.entries if entry.decision.verdict == "no verdict"]
    assert withdrawn == [id for id in CORRECTED if id not in RENAMED]


@pytest.mark.parametrize("id", CORRECTED)
def test_every_place_shows_the_correction(id, whole, tmp_path, capsys):
    entry = whole[id]
    words = list(entry.claim.corrected.lines.values())
    assert all(words)
    assert run(["claims", "show", id]) == 0
    terminal = " ".join(capsys.readouterr().out.split())
    table = claims_table.corrections(whole)
    pages = dict(site.pages())[f"claims/{entry.claim.seed}.md"]
    write_pages(whole.of_seed(entry.claim.seed), tmp_path)
    html = (tmp_path / f"seed-{entry.claim.seed}.html").read_text()
    for heading, text in entry.claim.corrected.lines.items():
        assert f"{heading}: {' '.join(text.split())}" in terminal
        assert f"*{heading}.* {text}" in table
        assert heading in pages
        assert heading in html
    assert run(["claims", "show", id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["corrected"]["date"] == "2026-11-19"


def test_a_withdrawn_row_has_its_number_and_no_word_of_a_verdict(whole):
    for id in (id for id in CORRECTED if id not in RENAMED):
        row = whole[id].to_plain()
        assert row["sentence"].startswith(NOT_CARRIED)
        assert row["estimate"] is not None
        assert row["p"] is None
        assert row["wanted"] is None
        assert not whole[id].nulls
        assert not re.search(r"as wanted|outside|confirmed|refuted|undecided", row["sentence"])


def test_counts_name_them(whole):
    assert whole.counts["no verdict"] == 8
    assert sum(whole.counts.values()) == len(whole.entries)
    assert "8 without a verdict" in whole.answer


def test_a_correction_moves_no_other_verdict():
    """It still counts among the tests of its page, so Holm's correction of the others stays."""
    rows = [Claim(f"000-{i:02d}", "It is below one.", "us", Inside("m", high=1.0)) for i in range(6)]
    values = [0.5, 0.75, 0.85, 0.6]
    known = {row.id: Evidence(row.id, (number("m", values),), (0, 1, 2, 3)) for row in rows}
    back = Correction(printed="confirmed", why="x", stands="y", decides="z")
    few = [*rows[:1], *(Claim(r.id, r.statement, r.source, r.criterion, corrected=back) for r in rows[1:])]
    assert decide(rows, known)[0].adjusted == decide(few, known)[0].adjusted
    assert {d.verdict for d in decide(few, known)[1:]} == {"no verdict"}


def test_measured_again_it_stays_without_a_verdict(capsys, tmp_path):
    assert run(["claims", "run", "001-23", "--out", str(tmp_path)]) == 0
    assert "001-23 has no verdict." in capsys.readouterr().out


def stored(name, metric, arm, *, at=None, minus=None):
    found = book.read_all()[name]
    values = found.find(metric, arm).column(at)
    if minus is not None:
        values = [a - b for a, b in zip(values, found.find(metric, minus).column(at), strict=True)]
    test = paired(values)
    return test.mean, test.low, test.high


INNER, GAP = "held-out loss", "total variation"
BARE = "pre_norm(final_norm=false)"


@pytest.mark.parametrize(
    ("id", "numbers"),
    [
        ("000-05", stored("000-05", "read-out R2 of early layers", "pre_norm, step 0")),
        ("000-05", stored("000-05", "read-out R2 of early layers", "pre_norm")),
        ("000-19", stored("inner-placements", INNER, "block_attn_res(inner=pre_norm)", minus="pre_norm")),
        ("000-19", stored("inner-placements", INNER, "block_attn_res(inner=peri_norm)", minus="peri_norm")),
        ("000-19", stored("inner-placements", INNER, "block_attn_res(inner=res_norm)", minus="res_norm")),
        ("001-10", stored("mean-field", "largest over smallest gradient of a layer", "pre_norm")),
        ("001-10", stored("gradients-by-matrix", "W1 gradient, first layer over last", "pre_norm, encoder-decoder 6-6")),
        ("001-10", stored("gradients-by-matrix", "W1 gradient, first layer over last", "pre_norm, encoder-decoder 12-12")),
        ("002-13", stored("set-complement-arms", GAP, "pre_norm", at=15.0)[:1]),
        ("002-13", stored("set-complement-arms", GAP, "post_norm", at=15.0)[:1]),
        ("002-24", stored("norm-kinds", GAP, "post_norm, layernorm", at=15.0, minus=BARE)),
        ("002-24", stored("norm-kinds", GAP, "post_norm, rmsnorm", at=15.0, minus=BARE)),
        ("002-24", stored("norm-kinds", GAP, "post_norm, l2", at=15.0, minus=BARE)),
        ("002-24", stored("norm-kinds", GAP, "post_norm, dyt", at=15.0, minus=BARE)),
    ],
)  # fmt: skip
def test_numbers_in_the_words_are_those_of_the_evidence(id, numbers):
    words = ledger()[id].corrected.stands
    for value in numbers:
        assert any(float(text) == pytest.approx(value, abs=0.6 * 10 ** -len(text.partition(".")[2])) for text in
                   re.findall(r"[-+]?\d+\.\d+", words)), (id, value)  # fmt: skip


def test_every_measurement_has_a_kind(whole):
    kinds = {entry.kind for entry in whole.entries if entry.decision.evidence is not None}
    assert kinds == {"identity or closed form", "random networks", "toy task", "small trained models"}
    assert whole["001-17"].kind == "random networks"
    assert whole["002-02"].kind == "toy task"
    assert whole["000-22"].kind == whole["002-22"].kind == "small trained models"


def test_rows_whose_rate_is_at_the_end_of_the_grid_say_so(whole):
    for id in ("001-05", "001-12", "002-03", "004-05", "004-10"):
        assert whole[id].claim.limit, id
        assert whole[id].claim.limit in claims_table.row(whole[id])
