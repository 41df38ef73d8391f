"""No page ranks schemes without the kind of its evidence and n, and none uses words for certainty."""

import re
from pathlib import Path
from typing import get_args

import pytest
from tools.site import choose, ladder, ledger

from normlab.experiments.claims.bench import Kind

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/choose.md", "docs/results/README.md", "docs/compare.md", "docs/site/index.md")
SCHEME = re.compile(r"\b(\w+_norm|\w*attn_res|dense_former|\w+[Nn]orm|(?i:(?:pre|post|peri)-norm)|AttnRes)\b")
ORDER = re.compile(
    r"\b(lower|higher|below|above|better|best|worse|behind|ahead|beats?|minus|against|gains?|costs?|lowest|highest)\b"
)
EFFECT = re.compile(r"(?<![\w.])[-+]\d*\.\d+\b|\d*\.\d+ (nats\b|\(|below|above|lower|higher|behind)")
COUNTED = re.compile(r"\bn = \d+")
KINDS = tuple(get_args(Kind))
CERTAIN = re.compile(r"\bsurely\b|for certain|told apart|\bestablished as\b")


def blocks(text):
    """(introduction, block): paragraphs and items of lists, without code, tables, comments and headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"(?s:<!--.*?-->)|^\|.*$|^#.*$", "", text, flags=re.M)
    found, intro = [], ""
    for paragraph in re.split(r"\n\s*\n", text):
        before, *items = (" ".join(part.split()) for part in re.split(r"^- ", paragraph, flags=re.M))
        if before:
            found.append(("", before))
            intro = before if before.endswith(":") else ""
        found += [(intro, item) for item in items]
    return found


def ranks(block):
    """It sets schemes against each other by a difference with a word of order; what others published is told as theirs."""
    published = block.startswith("Published effects")
    return bool(not published and SCHEME.search(block) and ORDER.search(block) and EFFECT.search(block))


def lacking(text):
    """Ranking blocks without n or kind; a list takes both from the sentence that introduces it."""
    return [
        block for intro, block in blocks(text) if ranks(block)
        and not (COUNTED.search(intro + block) and any(kind in intro + block for kind in KINDS))
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_a_ranking_sentence_has_its_n_and_its_kind(page):
    assert not lacking((ROOT / page).read_text(encoding="utf-8"))


def test_pages_of_the_site_too():
    assert not lacking(choose.page())
    for path, text in ledger.pages():
        rows = [line for line in text.splitlines() if line.startswith("| [0")]
        assert all(
            COUNTED.search(row) and any(kind in row for kind in KINDS) for row in rows if "not measured" not in row
        ), path


@pytest.mark.parametrize(
    "sentence",
    [
        "these end lower than tuned Pre-Norm:\n\n- `peri_norm` -0.119 (-0.147 to -0.091) nats\n- `siamese_norm` 0.098 below",
        "siamese_norm is better than pre_norm at 12 layers, -0.091 (-0.110 to -0.073) nats.",
        "Peri-Norm ends 0.119 below Pre-Norm (n = 5).",
        "Peri-Norm ends 0.119 below Pre-Norm (small trained models).",
    ],
)
def test_sentences_that_stood_there_are_caught(sentence):
    assert lacking(sentence)


def test_what_is_complete_passes():
    assert not lacking("Peri-Norm ends 0.119 below Pre-Norm (small trained models, n = 5).")
    assert lacking("Differences (toy task, n = 12):\n\nAnother paragraph.\n\n- `peri_norm` is -0.1 below `pre_norm`")
    assert not lacking("Differences from Pre-Norm (toy task, n = 12):\n\n- `peri_norm` -0.1 below it")
    assert not lacking("`normlab compare --schemes pre_norm` trains it at its best rate.")


@pytest.mark.parametrize("page", PAGES)
def test_no_word_says_that_a_number_is_certain(page):
    assert not CERTAIN.search((ROOT / page).read_text(encoding="utf-8"))


def test_a_rate_at_the_end_of_the_grid_is_named():
    """And a scheme that starts otherwise than Pre-Norm stands in no group that compares placements."""
    groups = ladder.stored().groups
    assert {step.scheme for step in groups["Best rate at the end of the grid"]} == {"post_norm", "res_norm"}
    assert {step.scheme for step in groups["Same start as Pre-Norm"]} <= ladder.SAME_START
    others = groups["Another start, so that the number is not about the placement"]
    assert {step.scheme for step in others} == {"peri_norm", "siamese_norm"}


def test_the_table_of_200_steps_is_on_no_page_that_helps_to_choose():
    for page in ("README.md", "docs/choose.md", "docs/site/choose.md", "docs/site/index.md"):
        assert "200 steps" not in (ROOT / page).read_text().replace("After 200 steps of training the swapped", ""), page
    short = (ROOT / "docs/results/README.md").read_text().split("## ")[0]
    assert "200 steps" not in short
    assert (ROOT / "docs/results/table/tables.md").read_text().startswith("# Smoke test: 200 steps")


def test_the_correction_tells_the_numbers_of_the_ledger():
    words = ladder.stored().correction
    assert "0.119" in words
    assert "0.098" in words
    gain = ladder.FAIR_GAIN.split(" nats ")[0]
    assert gain in ledger.book()["004-09"].claim.corrected.stands
    for page in ("README.md", "docs/choose.md"):
        assert words in (ROOT / page).read_text()
