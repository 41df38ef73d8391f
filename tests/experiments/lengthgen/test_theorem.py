"""The set complement theorem holds to rounding, and a wrong construction would be seen."""

import pytest

from normlab.experiments.lengthgen.theorem import CheckedClaim, verify
from normlab.results import as_row
from normlab.theory import complement_theorem as theory


def test_every_claim_holds():
    found = verify(9)
    assert len(found) >= 8
    assert all(claim.holds for claim in found)
    assert as_row(found[0])["holds"] is True


def test_a_wrong_law_is_seen(monkeypatch):
    monkeypatch.setattr(theory, "gap", lambda s, c: 1.01 * c / s)
    assert [claim.claim for claim in verify(6) if not claim.holds] == ["gap is c / s"]


@pytest.mark.parametrize(("deviation", "holds"), [(0.0, True), (1e-9, False)])
def test_what_holds(deviation, holds):
    assert CheckedClaim("x", deviation).holds is holds
