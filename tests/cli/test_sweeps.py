"""What the commands of sweeps share."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from normlab.cli._request import Given
from normlab.cli._sweeps import deliver, place_of
from normlab.errors import ConfigError
from normlab.experiments.compare.result import Comparison
from tests.experiments.compare.rows import BASE, answered, row

GIVEN = Given({}, out=Path("runs/x"), workers=2, json=True)


def test_a_place_is_what_was_typed_and_quiet_where_json_owns_stdout():
    place = place_of(GIVEN)
    assert (place.out, place.workers, place.quiet) == (Path("runs/x"), 2, True)
    assert not place_of(replace(GIVEN, json=False)).quiet
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        place_of(replace(GIVEN, device="gpu"))


def test_a_result_is_written_then_said(tmp_path, capsys):
    result = Comparison([], [answered(row("pre_norm", BASE), row("keel", [2.5, 2.6, 2.7], BASE))], [])
    deliver(result, tmp_path, json=True)
    said = json.loads(capsys.readouterr().out)
    assert said.pop("report") == str(tmp_path / "report.html")
    assert said == json.loads((tmp_path / "comparison.json").read_text())
    deliver(result, tmp_path, json=False)
    assert "page: " in capsys.readouterr().out
