import re

import pytest

from normlab.errors import ConfigError
from normlab.experiments.claims.claim import Claim
from normlab.experiments.claims.criteria import Inside, NotMeasured
from normlab.experiments.claims.ledger import find, ledger, pages


def test_every_claim_has_a_criterion_and_a_source():
    assert len(ledger()) == 113
    assert {seed: len(rows) for seed, rows in pages().items()} == {
        "000": 26,
        "001": 26,
        "002": 27,
        "003": 24,
        "004": 10,
    }
    for claim in ledger().values():
        assert claim.criterion.text(), claim.id
        assert claim.source, claim.id
        assert claim.statement.endswith("."), claim.id
    assert sum(isinstance(c.criterion, NotMeasured) for c in ledger().values()) <= 12


def test_criteria_state_numbers_and_what_they_read():
    for claim in ledger().values():
        if claim.measurable:
            assert re.search(r"\d", claim.criterion.text()), claim.id


def test_unknown_ids():
    assert find(" 002-02 ").id == "002-02"
    with pytest.raises(ConfigError, match="unknown claim '002-2'; did you mean"):
        find("002-2")
    with pytest.raises(ConfigError, match="is like 002-02"):
        Claim("two", "x", "y", Inside("m"))
