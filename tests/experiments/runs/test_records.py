import json
from pathlib import Path

import pytest

from normlab.errors import DamagedError, InputError
from normlab.experiments.runs.records import (
    FinishedRun,
    LengthScore,
    RunSummary,
    TrainRecord,
    ValidationRecord,
    read_run,
)
from normlab.training.record import Log
from tests.experiments.tiny import tiny

RECORDS = [
    {"kind": "train", "step": 1, "loss": 2.0, "grad_norm": 0.5, "added later": 1},
    {"kind": "validation", "step": 1, "loss": 2.5},
    {"kind": "train", "step": 2, "loss": None, "grad_norm": None},
]


def finished(folder=Path("run"), **summary):
    return FinishedRun(folder, tiny(seed=3, lr=0.25), RunSummary(**{"status": "finished", **summary}))


def test_a_diverged_run_has_no_loss():
    assert finished(validation=1.5).loss == 1.5
    assert finished(validation=1.5, status="diverged").loss is None
    assert (finished().seed, finished().lr, finished().name) == (3, 0.25, "run")


def test_scores_by_weights_and_length():
    summary = RunSummary("finished", weights={"raw": {"16": {"tv": 0.1, "new": 1}, "loss": 2.0}, "ema": None})
    assert summary.at_length("raw", 16) == LengthScore(tv=0.1)
    assert summary.at_length("raw", 32) == summary.at_length("ema", 16) == LengthScore()
    assert (summary.averaged("raw"), summary.averaged("ema"), summary.averaged("bema")) == (2.0, None, None)


def test_records_of_a_log_are_types_and_another_log_is_refused(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.path.touch()
    log.open()
    for record in RECORDS:
        log.write(record)
    mark = log.sync().to_dict()
    log.close()
    run = finished(tmp_path, log=mark)
    assert run.training() == [TrainRecord(1, 2.0, 0.5), TrainRecord(2, None, None)]
    assert run.validation() == [ValidationRecord(1, 2.5)]
    assert run.layers() == []
    log.path.write_text(log.path.read_text().replace("2.5", "2.4"))
    with pytest.raises(DamagedError, match="its records are not those that were there"):
        finished(tmp_path, log=mark).validation()


def test_a_folder_without_a_summary_is_no_finished_run(tmp_path):
    assert read_run(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"status": 3}))
    with pytest.raises(InputError, match=r"summary\.json"):
        read_run(tmp_path)


def test_a_look_of_before_effects_were_measured_is_read(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.path.touch()
    log.open()
    log.write({"kind": "layers", "step": 0, "contribution": [0.5, 0.25], "magnitude": [1.0, 1.1, 1.2]})
    mark = log.sync().to_dict()
    log.close()
    (look,) = finished(tmp_path, log=mark).layers()
    assert (look.contribution, look.effect) == ([0.5, 0.25], None)
