"""Triton without a GPU: the kernels equal PyTorch in the interpreter, and compile for GPUs without spills or double loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.schemes.ops import ahead_of_time

ROOT = Path(__file__).resolve().parents[3]
NAMES = [case.kernel.__name__ for case in ahead_of_time.cases(4096)]


def interpret(what):
    """In a process of its own: the interpreter is chosen before Triton is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.schemes.ops.interpret", what]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_interpreter_and_pytorch_agree():
    """Odd widths, remainders, many queries; float32, bfloat16, float16; with what came past, and without."""
    done = interpret("depth")
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def check(d, capability, index):
    case = ahead_of_time.cases(d)[index]
    found = ahead_of_time.compiled(case, capability)
    assert found.spilled == 0
    assert found.loads == case.loads


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_compiled_for_a_gpu_that_is_not_here(index):
    check(4096, 90, index)


@pytest.mark.slow  # a minute and a half of the compiler
@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("d", [768, 4096, 7168])
def test_compiled_for_every_width_and_gpu(d, capability, index):
    check(d, capability, index)


def test_a_double_load_would_be_seen():
    """The formula can fail: with half as many sources there are fewer loads than it says."""
    case = next(case for case in ahead_of_time.cases(4096) if case.kernel.__name__ == "_attend_forward")
    fewer = ahead_of_time.Case(case.kernel, case.given, case.constants | {"N": 4}, case.warps, case.loads)
    assert ahead_of_time.compiled(fewer, 90).loads < case.loads
