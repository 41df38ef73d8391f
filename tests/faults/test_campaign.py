"""The campaign itself: it survives what it should, and sees what it should not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, random, sys
from tools.faults import campaign, jobs
from tools.faults.campaign import FAULTS
job = next(job for job in jobs.JOBS if job.name == "train")
ground = campaign.Ground(job)
if sys.argv[1] == "broken":  # a run that forgets its log when it goes on
    from normlab.training.record import Log
    Log.cut, Log.check = (lambda self, size: None), (lambda self, mark: None)
found = {}
for name, (trial, _) in FAULTS.items():
    blows = []
    for number in range(4 if name == "kill -9" or sys.argv[1] == "sound" else 0):
        ground.chance = random.Random(f"{name} {number}")
        blows.append(trial(ground))
    found[name] = [sum(b.tried for b in blows), [b.fault for b in blows if b.fault]]
ground.close()
print(json.dumps(found))
"""


def campaign(kind):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, kind], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_survives_all_of_it():
    for name, (tried, lost) in campaign("sound").items():
        assert tried >= 2, name
        assert not lost, name


def test_a_fault_is_seen():
    tried, lost = campaign("broken")["kill -9"]
    assert tried >= 4
    assert "other numbers than the undisturbed run" in lost[0]


@pytest.mark.slow
def test_the_command_prints_the_table_and_goes_on_where_it_stopped(tmp_path):
    ledger = tmp_path / "faults.jsonl"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tools.faults",
        "--ledger",
        str(ledger),
        "--kills",
        "10",
        "--cases",
        "100",
    ]
    done = subprocess.run([*command, "--minutes", "20"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| all kills |" in done.stdout
    assert "| all fuzzed input |" in done.stdout
    whole = ledger.read_text()
    again = subprocess.run([*command, "--minutes", "0"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.stdout.split("| all kills")[1].split("- ")[0] == done.stdout.split("| all kills")[1].split("- ")[0]
    assert [line for line in ledger.read_text().splitlines() if '"row"' in line] == [
        line for line in whole.splitlines() if '"row"' in line
    ]


def test_fuzzed_input_is_refused_in_one_sentence(tmp_path):
    script = "from pathlib import Path; from tools.faults.fuzz import TARGETS, fuzz; import sys\nfor t in TARGETS: print(t, [fuzz(t, 12, Path(sys.argv[1]))])"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) >= 9
    assert all(line.endswith("[None]") for line in lines), done.stdout
