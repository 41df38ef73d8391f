"""The campaign itself: it survives what it should, and sees what it should not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, random, signal, sys, time
from tools.faults import campaign, jobs
from tools.faults.harness import Tally
job = next(job for job in jobs.JOBS if job.name == "train")
ground = campaign.Ground(job, random.Random(1))
if sys.argv[1] == "broken":  # a run that forgets its log when it goes on
    from normlab.training.record import Log
    Log.cut, Log.check = (lambda self, size: None), (lambda self, mark: None)
until = time.monotonic() + 120
kills, rest = Tally("kills"), [Tally("together"), Tally("full"), Tally("damaged")]
campaign.struck(ground, kills, signal.SIGKILL, trials=8, until=until)
if sys.argv[1] == "sound":
    for tally, trial in zip(rest, (campaign.together, campaign.full, campaign.damaged)):
        trial(ground, tally, trials=5, until=until)
ground.close()
print(json.dumps([[t.tried, t.survived, t.lost] for t in (kills, *rest)]))
"""


def campaign(kind):
    import json

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, kind], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_survives_all_of_it():
    for tried, survived, lost in campaign("sound"):
        assert tried >= 5
        assert survived == tried, lost


def test_a_fault_is_seen():
    (tried, survived, lost), *_ = campaign("broken")
    assert tried >= 8
    assert survived < tried
    assert "other numbers than the undisturbed run" in lost[0]


@pytest.mark.slow
def test_the_command_prints_the_table():
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tools.faults",
        "--kills",
        "20",
        "--cases",
        "300",
        "--minutes",
        "5",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| all kills |" in done.stdout


def test_fuzzed_input_is_refused_in_one_sentence(tmp_path):
    script = "from pathlib import Path; from tools.faults.fuzz import fuzz; import sys\nfor t in fuzz(300, Path(sys.argv[1])): print(t.name, t.tried, t.lost)"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 8
    assert all(line.endswith("[]") for line in lines), done.stdout
