import pytest
import torch

from normlab.errors import DamagedError, InputError
from normlab.training.record import Conditions, Log, LogMark, provenance, read_log


def written(path, *records):
    path.touch()
    log = Log(path)
    log.open()
    for record in records:
        log.write(record)
    mark = log.sync()
    log.close()
    return mark


ONE, TWO = {"kind": "train", "step": 1, "loss": 2.0}, {"kind": "validation", "step": 1, "loss": float("nan")}


def test_records_come_back_and_nan_is_none(tmp_path):
    path = tmp_path / "log.jsonl"
    written(path, ONE, TWO)
    assert read_log(path) == [ONE, {**TWO, "loss": None}]
    assert read_log(path, "train") == [ONE]


def test_an_unfinished_last_line_is_passed_over_and_another_is_damage(tmp_path):
    path = tmp_path / "log.jsonl"
    written(path, ONE)
    path.write_bytes(path.read_bytes() + b'{"kind": "tr')
    assert read_log(path) == [ONE]
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DamagedError, match="line 2 is not a record"):
        read_log(path)
    path.write_text("3\n")
    with pytest.raises(DamagedError, match="line 1 is not a record"):
        read_log(path)
    with pytest.raises(InputError, match="cannot read"):
        read_log(tmp_path / "none")


def test_a_mark_knows_its_log_and_later_records_are_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    mark = written(path, ONE)
    log = Log(path)
    log.check(mark)
    path.write_bytes(path.read_bytes() + b'{"kind": "train", "step": 2}\n')
    log.check(mark)  # what came later is not its business
    log.cut(mark.size)
    assert read_log(path) == [ONE]
    path.write_bytes(path.read_bytes().replace(b"2.0", b"3.0"))
    with pytest.raises(DamagedError, match="its records are not those"):
        log.check(mark)
    log.check(LogMark(size=mark.size))  # earlier versions had no digest
    with pytest.raises(DamagedError, match="and had 999 at this checkpoint"):
        log.check(LogMark(size=999))


def test_changed_conditions_are_said():
    here = Conditions.here(torch.device("cpu"))
    assert here.changes(here) == []
    assert here.changes(here.replace(threads=here.threads + 1)) == [
        f"threads {here.threads} before, {here.threads + 1} now"
    ]
    found = provenance(torch.device("cpu"), 7)
    assert (found["seed"], found["versions"]["torch"]) == (7, torch.__version__)
