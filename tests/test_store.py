"""Folders that nothing leads out of, locks that destroy nothing, records that are as they were written."""

import contextlib
import json
from pathlib import Path

import pytest

from normlab.config import Config
from normlab.errors import DamagedError, InputError
from normlab.store import inside, locked, parse, read_json, read_object, whole

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


def write_both(folder, number):
    with whole(folder, last="config.json", parts=["part*"]) as room:
        (room / "templates").mkdir()
        (room / "templates" / f"chat-{number}").write_text(str(number))
        for name in ("config.json", f"part-{number}", "shared"):
            (room / name).write_text(str(number))


def read_both(folder):
    """What a reader finds: nothing where the last file is missing."""
    files = {path.name: path.read_text() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}
    return files if "config.json" in files else {}


@pytest.mark.parametrize("struck", ["unlink", "replace"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_files_of_two_writings_are_never_read_together(tmp_path, monkeypatch, struck, call):
    """The process ends at some operation between the old files and the new ones; the same writing again is whole."""
    (tmp_path / "mine").write_text("kept")
    write_both(tmp_path, 1)
    old = read_both(tmp_path)
    assert old == {"config.json": "1", "part-1": "1", "shared": "1", "mine": "kept"}
    operation, calls = getattr(Path, struck), []

    def strike(self, *arguments, **options):
        calls.append(self)
        if len(calls) == call:
            raise KeyboardInterrupt
        return operation(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, struck, strike)
        with contextlib.suppress(KeyboardInterrupt):
            write_both(tmp_path, 2)
    new = {"config.json": "2", "part-2": "2", "shared": "2", "mine": "kept"}
    assert len(calls) >= min(call, 2)
    assert read_both(tmp_path) in (old, new, {})
    write_both(tmp_path, 2)
    assert read_both(tmp_path) == new
    assert [path.name for path in (tmp_path / "templates").iterdir()] == ["chat-2"]
    assert not (tmp_path / ".incoming").exists()


def test_a_writing_that_fails_leaves_the_old_files(tmp_path):
    write_both(tmp_path, 1)
    old = read_both(tmp_path)
    with pytest.raises(OSError, match="No space") as caught, whole(tmp_path, last="config.json", parts=[]) as room:
        (room / "config.json").write_text("2")
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path)
    assert read_both(tmp_path) == old
