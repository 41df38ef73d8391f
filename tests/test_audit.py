"""What the audit makes of what pip-audit says."""

import json

from tools.audit import CLEAN, UNKNOWN, WEAK, Audit


def said(*items):
    return Audit.from_json(json.dumps({"dependencies": list(items), "fixes": []}))


SOUND = {"name": "numpy", "version": "2.4.6", "vulns": []}
SICK = {"name": "jinja2", "version": "3.1.0", "vulns": [{"id": "PYSEC-1"}, {"id": "GHSA-2"}]}
UNSEEN = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0)"}


def test_what_was_not_looked_up_is_not_called_sound():
    assert said(SOUND).code == CLEAN
    assert said(UNSEEN).code == UNKNOWN
    assert said().code == UNKNOWN
    assert "nothing was checked" in str(said(UNSEEN))
    assert said(SOUND, UNSEEN).code == UNKNOWN
    assert "not looked up: torch" in str(said(SOUND, UNSEEN))


def test_a_weakness_is_named():
    found = said(SOUND, SICK, UNSEEN)
    assert found.code == WEAK
    assert "jinja2 3.1.0: PYSEC-1, GHSA-2" in str(found)
    assert "2 versions checked, 1 with known weaknesses" in str(found)
