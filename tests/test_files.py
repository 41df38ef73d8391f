"""Writing that survives kills and full disks; reading that nothing from outside can make endless."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from normlab.errors import InputError
from normlab.files import atomic_path, read_bytes, read_text, write_json, write_text

KILLED = """
import os, signal, sys
from normlab.files import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_what_a_kill_left_goes_with_the_next_writing(tmp_path):
    path = tmp_path / "report[1].html"  # brackets are letters here, not a pattern
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = hidden(tmp_path)
    os.utime(tmp_path / left, (time.time() - 60,) * 2)
    write_text(path, "whole")
    assert hidden(tmp_path) == []
    assert path.read_text() == "whole"


def test_what_another_process_is_writing_stays(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_path(path) as first:
        first.write_text("first")
        os.utime(first, (time.time() - 60,) * 2)
        write_text(path, "second")
        assert first.exists()
    assert path.read_text() == "first"


def test_a_link_is_replaced_not_followed(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    (tmp_path / "run").mkdir()
    link = tmp_path / "run" / "summary.json"
    link.symlink_to(outside)
    write_json(link, {})
    assert outside.read_text() == "mine"
    assert not link.is_symlink()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "a.txt"
    expected = pytest.raises(OSError, match=r"while writing: No space left.*a\.txt")
    with expected as caught, atomic_path(path), open("/dev/full", "w") as full:
        full.write("x")
    assert caught.value.errno == errno.ENOSPC
    assert not path.exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [("/dev/zero", "it is a device"), (".", "it is a folder"), ("a\0b", "cannot read"), ("none", "no such file")],
)
def test_what_is_no_file_is_refused(path, says):
    with pytest.raises(InputError, match=says) as caught:
        read_bytes(path, what="the text", most=10)
    assert "\n" not in str(caught.value)


def test_more_than_the_limit_is_refused_or_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abcé")
    assert read_text(path, what="the text", most=5) == "abcé"
    with pytest.raises(InputError, match="larger than the 4 bytes"):
        read_text(path, what="the text", most=4)
    assert read_text(path, what="the text", most=4, cut=True) == "abc"  # half a letter is none
    path.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 2 is 0xff\)"):
        read_text(path, what="the text", most=10)


def test_a_pipe_is_read_up_to_the_limit(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"exec yes > {pipe} 2> /dev/null"])
    try:
        assert len(read_bytes(pipe, what="the text", most=100, cut=True)) == 100
    finally:
        writer.kill()
        writer.wait()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    write_json(target, {"x": 1})
    assert json.loads(target.read_text()) == {"x": 1}
    with pytest.raises(ValueError):
        write_json(target, math.nan)
    assert json.loads(target.read_text()) == {"x": 1}
