"""`normlab watch` in a process of its own: it says where it is, answers, and ends with Ctrl-C."""

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from normlab.cli import run
from tests.ui.runs import record, write


def test_no_such_folder(capsys, tmp_path):
    assert run(["watch", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_without_the_packages(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["watch", str(tmp_path)]) == 2
    assert "`normlab watch` needs the package 'uvicorn'" in capsys.readouterr().err


def test_a_server(tmp_path):
    pytest.importorskip("uvicorn")
    write(tmp_path / "a", [record(1)])
    process = subprocess.Popen(
        [sys.executable, "-m", "normlab", "watch", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())[0]
        page = urllib.request.urlopen(address, timeout=60).read().decode()
        assert "Runs in" in page
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address[:-1], timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
