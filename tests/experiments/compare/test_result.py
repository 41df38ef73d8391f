import json
from pathlib import Path

import pytest

from normlab.experiments.compare.result import Comparison, RunRow
from normlab.experiments.runs.records import FinishedRun, RunSummary
from tests.experiments.compare.rows import BASE, answered, row
from tests.experiments.tiny import tiny


def test_a_run_on_one_line():
    config = tiny("block_attn_res(blocks=2)", depth=3, seed=4, lr=0.5)
    line = RunRow.of(FinishedRun(Path("x/run"), config, RunSummary("diverged", validation=1.0, context_free_loss=0.7)))
    assert (line.cell, line.scheme, line.depth, line.seed, line.lr) == ("run", "block_attn_res(blocks=2)", 3, 4, 0.5)
    assert (line.loss, line.validation, line.context_free_loss) == (None, 1.0, 0.7)
    assert line.scheme_flops_per_token == 3 * config.model.scheme.mixing_flops(config.model.frame()) > 0


def test_a_comparison_is_json_and_knows_its_baseline():
    found = answered(row("keel", [1.0, 1.1, 1.2], BASE), row("pre_norm", BASE))
    assert found.reference.scheme == "pre_norm"
    written = json.loads(json.dumps(Comparison([], [found], []).to_dict()))
    assert (written["kind"], written["schema"]) == ("compare", 2)
    assert written["settings"][0]["schemes"][0]["difference"]["mean"] == pytest.approx(-1.0)
    assert answered(row("pre_norm", BASE), task={"task": "text"}).setting.data == "the text that ships with normlab"
    assert answered(row("pre_norm", BASE), task={"task": "text", "path": "a.txt"}).setting.data == "a.txt"
