"""The demo's settings are what was promised, and its summary has ten lines."""

from dataclasses import replace
from pathlib import Path

from normlab.cli.demo import request, summary
from normlab.experiments.compare.claims import claim, settle
from normlab.experiments.compare.result import Comparison, SettingResult
from normlab.experiments.timing import RelativeCost
from tests.experiments.compare.rows import row, setting


def test_settings():
    config = request()
    assert config.schemes == ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res")
    assert config.depths == (24,)
    assert config.seeds == 2
    assert config.task.task == "text"


def test_ten_lines():
    rows = [row(name, [2.5], cost=RelativeCost(1.4, 1.4, 1.4, 1.0)) for name in request().schemes]
    rows[0] = replace(rows[0], mean=None)
    (claims,) = settle([[claim("a", "b", [1.0], 1, rows), claim("a", "b", [1.0, 1.1, 0.9], 1, rows)]])
    found = SettingResult(setting(), "pre_norm", rows, {}, claims, ["one.", "two.", "three."])
    lines = summary(Comparison([], [found], []), Path("report.html"), Path("diagnosis.html"))
    assert len(lines) == 10
    assert "diverged" in lines[3]
    assert "step time 1.40" in lines[4]
    assert "1 confirmed, 0 refuted, 1 undecided" in lines[8]
    assert "report.html" in lines[9]
