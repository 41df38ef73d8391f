"""The commands where no extra is installed: the packages are blocked, in the command and in the workers that it starts."""

import json
import os
import subprocess
import sys

import pytest

from tests.base_install import ANSWERED, EXTRA, REFUSED, check_answer, check_refusal, prepare, words

BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRA!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
# Many commands in one process: torch is loaded once.
RUN = """
import contextlib, io, json, os, sys
from normlab.cli import run
for typed in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(typed)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
SLOWER = ("stability", "lengthgen", "claims", "theory summary")  # test_package has them too, from the wheel


@pytest.fixture
def base(tmp_path):
    """base(commands): (exit code, stdout, stderr) of each."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCK)
    folder = tmp_path / "work"
    folder.mkdir()
    prepare(folder)
    paths = os.pathsep.join([str(tmp_path / "site"), *(path for path in sys.path if path)])
    environment = {**os.environ, "PYTHONPATH": paths}

    def run(commands):
        typed = json.dumps([words(command) for command in commands])
        done = subprocess.run(
            [sys.executable, "-c", RUN, typed], capture_output=True, text=True, cwd=folder, env=environment
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    run.folder = folder
    return run


def test_every_command_answers_or_refuses_before_it_works(base):
    answered = [command for command in ANSWERED if not command.startswith(SLOWER)]
    said = base([*answered, *REFUSED])
    for command, (code, out, err) in zip(answered, said, strict=False):
        check_answer(command, code, out, err, jinja2=False)
    for command, (code, out, err) in zip(REFUSED, said[len(answered) :], strict=True):
        check_refusal(command, code, out, err, base.folder)


def test_a_page_that_was_asked_for_is_refused_first(base):
    ((code, out, err),) = base(["claims --page pages"])
    assert (code, out) == (2, "")
    assert "--page needs the package 'jinja2', which is not installed" in err
    assert not (base.folder / "pages").exists()
