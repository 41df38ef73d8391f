"""torchrun with two gloo processes against one process on the same global batch, for real."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import read_summary
from normlab.experiments.runs.score import HeldOut
from normlab.model import TransformerConfig
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig, checkpoint
from normlab.training.loop import WEIGHTS, AverageConfig
from normlab.training.record import read_log

# One float32 step reorders sums; Adam's first steps divide by small second moments, which lets that grow a little.
TOLERANCE = 2e-4
STEPS, HALF = 8, 4


def config(scheme):
    job = task("tomita", number=4)
    return RunConfig(
        model=TransformerConfig(vocab_size=job.vocab_size, dim=16, depth=2, heads=2, scheme=scheme),
        task=job,
        train=TrainConfig(
            steps=STEPS,
            batch=4,
            length=8,
            lr=3e-3,
            schedule=Schedule(warmup=2),
            log_every=1,
            checkpoint_every=HALF,
            average=AverageConfig(every=2),
        ),
        score=HeldOut(validations=2, curve_sequences=8, sequences=8, layers=(), prune=False),
    )  # fmt: skip


def launch(path, out, *changes, processes=1, strategy="ddp"):
    command = [sys.executable, "-m", "normlab"]
    if processes > 1:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m", "normlab"]
        command = [sys.executable, "-m", *launcher]
    command += ["train", str(path), *changes, "--out", str(out), "--strategy", strategy, "--device", "cpu", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def train(*arguments, **how):
    done = launch(*arguments, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def scored(out):
    return [read_summary(out)["weights"][kind]["loss"] for kind in WEIGHTS]


def averages(out):
    return checkpoint.latest(out / "checkpoint").group("average")


def same_averages(one, two):
    a, b = averages(one), averages(two)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    assert scored(one) == pytest.approx(scored(two), rel=TOLERANCE)


def losses(out):
    return [record["loss"] for record in read_log(out / "log.jsonl", "train")]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("scheme", ["pre_norm", "block_attn_res"])
def test_two_processes_train_as_one(scheme, strategy, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(config(scheme).to_yaml())
    alone = train(path, tmp_path / "one")
    together = train(path, tmp_path / "two", processes=2, strategy=strategy)
    assert together["processes"] == 2
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=TOLERANCE)
    assert together["validation"] == pytest.approx(alone["validation"], rel=TOLERANCE)
    norms = [[r["grad_norm"] for r in read_log(tmp_path / n / "log.jsonl", "train")] for n in ("one", "two")]
    assert norms[0] == pytest.approx(norms[1], rel=20 * TOLERANCE)
    assert len({round(loss, 4) for loss in scored(tmp_path / "one")}) == len(WEIGHTS)  # the averages moved, and differ
    same_averages(tmp_path / "one", tmp_path / "two")
    _go_on(path, tmp_path, "two", "one again", processes=1)
    _go_on(path, tmp_path, "one", "two again", processes=2, strategy=strategy)


def _go_on(path, root, source, target, **how):
    """Continue from the checkpoint in the middle of a run with another number of processes: the same end."""
    shutil.copytree(root / source, root / target)
    (root / target / "summary.json").unlink()
    shutil.rmtree(root / target / "checkpoint" / f"step-{STEPS:09d}")
    train(path, root / target, **how)
    assert losses(root / target)[:HALF] == losses(root / source)[:HALF]
    assert losses(root / target) == pytest.approx(losses(root / source), rel=TOLERANCE)
    assert len(losses(root / target)) == STEPS
    assert read_summary(root / target)["validation"] == pytest.approx(
        read_summary(root / source)["validation"], rel=TOLERANCE
    )
    same_averages(root / source, root / target)


@pytest.mark.slow
def test_bad_use_is_a_sentence_and_leaves_nothing(tmp_path):
    path, out = tmp_path / "config.yaml", tmp_path / "out"
    path.write_text(config("pre_norm").to_yaml())
    sentence = "normlab: batch: 3 sequences do not divide among 2 processes; take a multiple of 2"
    _refused(launch(path, out, "train.batch=3", processes=2), sentence)
    assert not out.exists()
    train(path, out, processes=2)  # the corrected command is no other run
    _refused(launch(path, out, "train.lr=0.1", processes=2), "holds another run: train.lr is 0.003 there and 0.1 here")


def _refused(done, sentence):
    """Said once by the processes, again at the end of torchrun's own report, whose traceback has no frame of ours."""
    assert done.returncode == 1
    assert done.stdout == ""
    ours, _, report = done.stderr.partition("torch/distributed/elastic")
    assert ours.count(sentence) == 1
    assert "Traceback" not in ours
    assert sentence in report.strip().splitlines()[-2]
    assert "normlab/" not in report


LISTENING = """
import os
from normlab.training.distributed import process_group
with process_group() as group:
    sockets = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{n}")}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in open(table).read().splitlines()[1:]:
            fields = row.split()
            if f"socket:[{fields[9]}]" in sockets:
                what = "listens" if fields[3] == "0A" else "talks"
                os.write(1, f"rank {group.rank} {what} {fields[1].partition(':')[0]}\\n".encode())  # whole lines
"""


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs Linux")
def test_ranks_on_one_machine_listen_to_this_machine_only(tmp_path):
    """What gloo opens; the meeting point of torchrun is a process of its own, and listens where it is told."""
    script = tmp_path / "listening.py"
    script.write_text(LISTENING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {key: value for key, value in os.environ.items() if key != "GLOO_SOCKET_IFNAME"}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("rank")]
    assert {row[1] for row in rows if row[2] == "listens"} == {"0", "1"}, done.stdout
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert {row[3] for row in rows if row[2] == "listens"} <= loopback
