import json

from normlab.cli import run


def test_nine_rows(capsys):
    assert run(["theory", "summary", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 9
    assert run(["theory", "summary"]) == 0
    assert "on the stated sides" in capsys.readouterr().out
