"""A log as it grows: by offset, half lines wait, a log that is cut back is read anew, garbage is passed over."""

import json
from itertools import pairwise

from normlab.experiments.runs.records import TrainRecord
from normlab.experiments.runs.tail import LogTail, extremes, whole_curve


def train(step, loss=1.0):
    return json.dumps({"kind": "train", "step": step, "loss": loss, "grad_norm": 0.5, "seconds": 0.1}) + "\n"


def test_only_what_is_new(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    assert not tail.read(), "no file yet"
    path.write_text(train(1) + train(2)[:20])
    assert tail.read()
    assert [r.step for r in tail.training] == [1], "a half line waits"
    with open(path, "a") as file:
        file.write(train(2)[20:] + '{"kind": "validation", "step": 2, "loss": 3.0}\n')
    assert tail.read()
    assert [r.step for r in tail.training] == [1, 2]
    assert tail.validation[0].loss == 3.0
    assert not tail.read()


def test_a_long_log_is_skimmed_once_and_then_read(tmp_path):
    path = tmp_path / "log.jsonl"
    validation = '{"kind": "validation", "step": 1, "loss": 3.0}\n'
    path.write_text(validation + "".join(train(step) for step in range(1, 9001)))
    tail = LogTail(path, most=100)
    assert tail.read(skim=True)
    steps = [record.step for record in tail.training]
    assert 90 <= len(steps) <= 100
    assert max(b - a for a, b in pairwise([0, *steps, 9000])) < 200, "from all over it"
    assert not tail.validation
    assert not tail.read(skim=True), "once"
    assert tail.read()
    assert tail.training[-1].step == 9000
    assert tail.validation[0].loss == 3.0
    assert not tail.read()


def test_a_long_log_without_training_is_read_at_once(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"kind": "validation", "step": {step}, "loss": 3.0}}\n' for step in range(1, 9001)))
    tail = LogTail(path, most=100)
    assert tail.read(skim=True)
    assert tail.validation[-1].step == 9000


def test_a_log_that_was_cut_back(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    path.write_text("".join(train(step) for step in range(1, 9)))
    tail.read()
    with open(path, "r+") as file:  # the run was killed, and went on from step 4
        file.truncate(len(train(1)) * 4)
    tail.read()
    with open(path, "a") as file:
        file.write("".join(train(step, 7.0) for step in range(5, 12)))
    tail.read()
    assert [r.step for r in tail.training] == list(range(1, 12))
    assert tail.training[5].loss == 7.0


def test_cut_and_grown_between_two_looks(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    path.write_text("".join(train(step) for step in range(1, 9)))
    tail.read()
    with open(path, "r+") as file:
        file.truncate(len(train(1)) * 4)
        file.seek(0, 2)
        file.write("".join(train(step, 7.0) for step in range(5, 30)))
    tail.read()
    steps = [r.step for r in tail.training]
    assert steps == sorted(set(steps))
    assert steps[-1] == 29


def test_the_newest_step_is_kept_though_a_validation_stands_behind_it(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(train(s) for s in range(1, 5001)) + '{"kind": "validation", "step": 5000, "loss": 3.0}\n')
    tail = LogTail(path, most=100)
    tail.read()
    assert tail.training[-1].step == 5000
    assert [r.step for r in tail.validation] == [5000]


def test_a_damaged_line_in_a_long_log_costs_itself_only(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(train(s) if s % 7 else '{"kind": "train", "step": 1, \n' for s in range(1, 50)))
    tail = LogTail(path)
    tail.read()
    assert [r.step for r in tail.training] == [s for s in range(1, 50) if s % 7]


def test_garbage_is_passed_over(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b"\xff\xfe\n[]\n" + train(1).encode() + b'{"kind": "train", "step": "x"}\n{"kind": "train"}\nnull\n'
    )
    tail = LogTail(path)
    tail.read()
    assert [r.step for r in tail.training] == [1]


def test_many_points_are_thinned_and_the_last_is_kept(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(train(step) for step in range(1, 5001)))
    tail = LogTail(path, most=100)
    tail.read()
    assert len(tail.training) <= 201
    assert tail.training[0].step == 1
    assert tail.training[-1].step == 5000
    for step in range(5001, 5400):
        with open(path, "a") as file:
            file.write(train(step))
        tail.read()
    assert len(tail.training) <= 201
    assert tail.training[-1].step == 5399


def test_no_spike_is_lost(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(train(step, 99.0 if step == 777 else 1.0) for step in range(1, 2001)))
    kept = whole_curve(path, most=50)
    assert len(kept) <= 60
    assert 99.0 in [r.loss for r in kept]
    records = [TrainRecord(1, None, None), TrainRecord(2, 1.0, 1.0)]
    assert extremes(records, most=10) is records
