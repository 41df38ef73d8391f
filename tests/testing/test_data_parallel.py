"""Two processes for the contract suite, started so that a plain script may ask for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from normlab.errors import ContractError
from normlab.schemes import Card, SchemeConfig
from normlab.testing import check_scheme, data_parallel

SCRIPT = """
from __future__ import annotations

KEEP = 0.9
LOG = open("log", "a")

class Mine:
    keep = KEEP

def make() -> Mine:
    return Mine()

print("started", file=LOG, flush=True)
raise RuntimeError("what the script does is not done again")
"""


def test_only_the_definitions_of_a_script_are_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    names: dict[str, object] = {}
    data_parallel.define(tmp_path / "script.py", names)
    assert names["make"]().keep == 0.9
    assert "LOG" not in names
    assert not Path("log").exists()


def test_a_scheme_of_an_interactive_session_says_what_to_do(monkeypatch):
    class Here(SchemeConfig):
        card = Card(family="-", equation="-", citation="-", growth="-")

        def build(self, frame):
            raise NotImplementedError

    Here.__module__ = "__main__"
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ContractError, match=r"interactive session.*skip=\['data_parallel'\]"):
        data_parallel._script_of([Here(name="here")])


def test_a_process_that_fails_is_heard_and_the_other_is_ended(tmp_path):
    """As the two are started: one says why it fails, the other would wait for it."""
    commands = ["import time; time.sleep(60)", "raise SystemExit('gradients differ')"]
    processes = [subprocess.Popen([sys.executable, "-c", c], stderr=subprocess.DEVNULL) for c in commands]
    try:
        assert data_parallel._wait(processes) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_plain_script_without_a_guard(tmp_path):
    """README's first block, and a scheme that the script itself defines: it runs once, and the suite passes."""
    example = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    scheme = example.split("<!-- example: scheme -->\n```python\n")[1].split("```")[0]
    script = tmp_path / "plain.py"
    script.write_text(scheme + "\nprint('once')\nprint(nl.testing.check_scheme(LeakyNorm, only=['data_parallel']))\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split("\n")[:2] == ["once", "['data_parallel']"]


def test_the_suite_names_the_check():
    assert "data_parallel" in check_scheme.__globals__["CHECKS"]
