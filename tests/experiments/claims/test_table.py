"""The table in docs/claims is what the evidence says today."""

import pytest
from tools import claims_table

from normlab.experiments.claims import book


@pytest.fixture(scope="module")
def verdicts():
    return book.claims(nulls=False)


def test_the_page_is_up_to_date(verdicts):
    page = claims_table.DOCUMENT.read_text(encoding="utf-8")
    assert claims_table.written(page, verdicts) == page, "run `python tools/claims_table.py`"


def test_every_claim_has_a_row_and_the_rest_of_the_page_stays(verdicts):
    page = claims_table.written(f"before\n{claims_table.BEGIN}\nold\n{claims_table.END}\nafter\n", verdicts)
    assert page.startswith("before\n")
    assert page.endswith(f"{claims_table.END}\nafter\n")
    assert "\nold\n" not in page
    assert all(f"| {entry.claim.id} |" in page for entry in verdicts.entries)
