"""A command takes the cores that it may use, and its threads sleep while they wait: two commands do not starve each other."""

import json
import os
import subprocess
import sys

import pytest

from normlab.cli import share_the_cores
from normlab.experiments.executors import local
from normlab.experiments.executors.protocol import _quota, cores

OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


@pytest.fixture
def unset(monkeypatch):
    for name in OURS:
        monkeypatch.setenv(name, "")  # so that the old value comes back
        monkeypatch.delenv(name)
    return monkeypatch


def test_what_the_command_line_sets(unset):
    share_the_cores()
    assert [os.environ.get(name) for name in OURS] == [str(cores()), "PASSIVE", "0"]


def test_what_the_user_has_set_stays(unset):
    unset.setenv("OMP_NUM_THREADS", "7")
    unset.setenv("OMP_WAIT_POLICY", "ACTIVE")
    share_the_cores()
    assert [os.environ.get(name) for name in OURS] == ["7", "ACTIVE", None]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
@pytest.mark.parametrize(
    ("mine", "threads", "waits"), [({}, 1, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, 1, "ACTIVE")]
)
def test_torchs_runtime_heeds_it(mine, threads, waits):
    """libgomp says what it has read, once, when torch loads it: so it was set before."""
    environment = {key: value for key, value in os.environ.items() if key not in OURS}
    one = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-m", "normlab", "env", "--json"], capture_output=True, text=True, check=True,
        env={**environment, "OMP_DISPLAY_ENV": "TRUE", **mine}, preexec_fn=lambda: os.sched_setaffinity(0, {one}),
    )  # fmt: skip
    assert f", {threads} threads," in json.loads(done.stdout)["processor"]
    if "OPENMP DISPLAY ENVIRONMENT BEGIN" not in done.stderr:
        pytest.skip("torch's OpenMP is not libgomp")
    assert f"OMP_WAIT_POLICY = '{waits}'" in done.stderr
    assert f"OMP_NUM_THREADS = '{threads}'" in done.stderr


def test_workers_of_a_sweep_keep_their_own(unset):
    """One thread each by default, whatever the command has taken for itself."""
    started, popen = {}, subprocess.Popen

    def spied(*arguments, env, **more):
        started.update(env)
        return popen(*arguments, env=env, **more)

    unset.setenv("OMP_NUM_THREADS", "7")
    share_the_cores()
    unset.setattr(local.subprocess, "Popen", spied)
    with local.LocalExecutor(workers=2) as executor:
        executor._start()
    assert (started["OMP_NUM_THREADS"], started["MKL_NUM_THREADS"], started["OMP_WAIT_POLICY"]) == ("1", "1", "PASSIVE")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    ],
)
def test_a_container_may_pay_for_fewer_cores_than_it_shows(files, quota, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _quota(tmp_path) == quota
