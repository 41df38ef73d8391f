"""Folders that nothing leads out of, locks that destroy nothing, records that are as they were written."""

import json

import pytest

from normlab.config import Config
from normlab.errors import DamagedError, InputError
from normlab.store import inside, locked, parse, read_json, read_object

REMEDY = "delete that file to run it again"


def test_a_lock_that_is_a_link_destroys_nothing(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("keep")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with pytest.raises(InputError, match=r"\.lock' is a link"), locked(tmp_path / "run"):
        pass
    assert precious.read_text() == "keep"


def test_a_lock_keeps_what_is_in_it_and_excludes_a_second(tmp_path):
    (tmp_path / ".lock").write_text("anything")
    with locked(tmp_path), pytest.raises(InputError, match="another process is working"), locked(tmp_path, wait=0):
        pass
    assert (tmp_path / ".lock").read_text() == "anything"
    with locked(tmp_path, wait=0):
        pass


def test_links_inside_are_refused_and_the_folder_may_be_one(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "away").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    assert inside(tmp_path / "runs", "log.jsonl") == tmp_path / "runs" / "log.jsonl"
    (tmp_path / "real" / "checkpoint").symlink_to(tmp_path / "away")
    with pytest.raises(InputError, match="checkpoint' is a link"):
        inside(tmp_path / "runs", "checkpoint", "step-000000001")
    with pytest.raises(InputError, match="cannot look at"):
        inside(tmp_path, "a\0b")


DAMAGE = {
    "empty": b"",
    "cut": b'{"a": 1',
    "binary": b"\xff\xfe\x00",
    "null": b"null",
    "list": b"[1]",
    "missing key": b"{}",
    "other type": b'{"a": "one"}',
    "a flag for a number": b'{"a": true}',
    "deep": b"[" * 100_000,
    "many digits": b'{"a": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_kind_of_error_with_the_file_and_what_to_do(tmp_path, name):
    path = tmp_path / "summary.json"
    path.write_bytes(DAMAGE[name])
    with pytest.raises(DamagedError) as caught:
        read_object(path, remedy=REMEDY, keys={"a": int})
    assert str(path) in str(caught.value)
    assert REMEDY in str(caught.value)
    assert "\n" not in str(caught.value)


def test_records_come_back_as_their_type(tmp_path):
    class Record(Config):
        a: int
        b: tuple[float, ...] = ()

    path = tmp_path / "record.json"
    path.write_text(json.dumps({"a": 1, "b": [2.0]}))
    assert parse(Record, read_json(path, remedy=REMEDY), path=path, remedy=REMEDY) == Record(a=1, b=(2.0,))
    for wrong in (None, [], {"a": "x"}, {"a": 1, "c": 2}):
        with pytest.raises(DamagedError, match=r"record\.json"):
            parse(Record, wrong, path=path, remedy=REMEDY)
