import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from normlab.errors import ConfigError, InputError
from normlab.model import Transformer, TransformerConfig
from normlab.tasks import task
from normlab.training import Schedule, TrainConfig, Trainer
from normlab.training.loop import cross_entropy
from normlab.training.record import read_log


def make(folder, *, scheme="pre_norm", ground=None, **options):
    ground = ground or task("set_complement", vocab=8)
    torch.manual_seed(options.get("seed", 0))
    model = Transformer(
        TransformerConfig(
            vocab_size=ground.vocab_size, dim=8, depth=1, heads=2, scheme=scheme, dropout=options.pop("dropout", 0.0)
        )
    )
    defaults = {"steps": 30, "batch": 4, "length": 6, "log_every": 1, "checkpoint_every": 7, "schedule": Schedule()}
    config = TrainConfig(**{**defaults, **options})
    return Trainer(model, ground, config, folder, quiet=True)


def losses(folder):
    return [record["loss"] for record in read_log(folder / "log.jsonl", "train")]


def test_it_learns_and_leaves_the_files(tmp_path):
    trainer = make(tmp_path, ground=task("tomita", number=2), steps=300, lr=1e-2, checkpoint_every=100, batch=32)
    summary = trainer.run()
    assert summary["status"] == "finished"
    assert (tmp_path / "summary.json").exists()
    assert summary["loss"] < 0.6 < 1.0 < losses(tmp_path)[0]  # the entropy is about log(2) / 2
    assert {"torch", "normlab", "python"} <= set(summary["versions"])
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["step-000000200", "step-000000300"]


SCRIPT = """
import sys, os, signal
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_loop import make
from pathlib import Path
trainer = make(Path(sys.argv[1]), steps=90, dropout=0.1, checkpoint_every=20, scheme={scheme!r}, accumulate=2)
plain, last = trainer._one, int(sys.argv[2])
trainer._one = lambda: os.kill(os.getpid(), signal.SIGKILL) if trainer.step == last else plain()
trainer.run()
"""


@pytest.mark.parametrize("scheme", ["post_norm", pytest.param("ngpt", marks=pytest.mark.slow)])
def test_kill_9_and_rerun_gives_the_same_losses_bit_for_bit(tmp_path, scheme):
    """Killed by a real signal, at a step that no clock decides: seven steps behind a checkpoint."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(tests=os.path.dirname(__file__), scheme=scheme)))

    def start(folder, last=-1):
        return subprocess.run([sys.executable, str(script), str(tmp_path / folder), str(last)], check=False).returncode

    assert start("whole") == 0
    assert start("killed", 47) == -signal.SIGKILL
    assert not (tmp_path / "killed" / "summary.json").exists()
    assert len(losses(tmp_path / "killed")) == 47
    assert start("killed") == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    ends = [tmp_path / name / "checkpoint/step-000000090/tensors.safetensors" for name in ("killed", "whole")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_ctrl_c_saves_between_two_steps(tmp_path):
    trainer = make(tmp_path, steps=100, checkpoint_every=1000)
    plain = trainer._one

    def interrupted():
        if trainer.step == 41:
            os.kill(os.getpid(), signal.SIGINT)
        return plain()

    trainer._one = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert [p.name for p in (tmp_path / "checkpoint").iterdir()] == ["step-000000042"]
    assert not (tmp_path / "summary.json").exists()
    make(tmp_path, steps=100, checkpoint_every=1000).run()
    make(tmp_path / "whole", steps=100, checkpoint_every=1000).run()
    assert losses(tmp_path) == losses(tmp_path / "whole")


@pytest.mark.parametrize("cause", ["nan", "high"])
def test_divergence_is_an_outcome(tmp_path, cause):
    trainer = make(tmp_path, steps=50, patience=5)
    plain = trainer.loss

    def broken(model, batch):
        loss = plain(model, batch)
        if trainer.step < 10:
            return loss
        return loss * float("nan") if cause == "nan" else loss * 1000

    trainer.loss = broken
    summary = trainer.run()
    assert summary["status"] == "diverged"
    assert summary["step"] == (10 if cause == "nan" else 14)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert '"status": "diverged"' in (tmp_path / "summary.json").read_text()


def test_accumulation_equals_one_large_batch(tmp_path):
    """Without clipping: two micro-batches of 4 make the gradient of their union."""
    small = make(tmp_path / "a", accumulate=2, batch=4)
    large = make(tmp_path / "b", batch=8)
    draws = torch.Generator().manual_seed(9)
    whole = small.task.sample(8, 6, draws)
    halves = [type(whole)(whole.tokens[i : i + 4], whole.targets[i : i + 4]) for i in (0, 4)]
    small._batch = iter(halves).__next__
    large._batch = lambda: whole
    assert small._one()["grad_norm"] == pytest.approx(large._one()["grad_norm"], rel=1e-5)
    for p, q in zip(small.model.parameters(), large.model.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_every_evaluation_scores_raw_ema_and_bema(tmp_path):
    trainer = make(tmp_path, evaluate_every=10, average={"every": 1})
    trainer.evaluate = lambda model: {"first": float(next(model.parameters()).flatten()[0])}
    summary = trainer.run()
    records = read_log(tmp_path / "log.jsonl", "evaluation")
    assert [r["step"] for r in records] == [10, 20]
    values = [summary["weights"][kind]["first"] for kind in ("raw", "ema", "bema")]
    assert len(set(values)) == 3
    assert values[0] == next(trainer.model.parameters()).flatten()[0].item()


def test_exact_targets_are_the_mean_of_sampled_ones():
    ground = task("dyck", targets="exact")
    batch = ground.sample(3, 9, torch.Generator().manual_seed(0))
    logits = torch.randn(3, 9, ground.vocab_size, dtype=torch.float64)
    by_hand = 0.0
    for b in range(3):
        for t in range(9):
            by_hand -= float((batch.law[b, t] * logits[b, t].log_softmax(-1)).sum()) / 27
    assert float(cross_entropy(logits, batch, exact=True)) == pytest.approx(by_hand, abs=1e-12)


def test_bfloat16_runs(tmp_path):
    assert make(tmp_path, precision="bfloat16", steps=5).run()["status"] == "finished"


def test_bad_settings():
    with pytest.raises(ConfigError, match="200 steps of warm-up do not fit into 100"):
        TrainConfig(steps=100, schedule=Schedule(warmup=200))
    with pytest.raises(ConfigError, match="did you mean 'batch'"):
        TrainConfig(bach=3)
    with pytest.raises(InputError, match="at most 7 distinct"):
        make("unused", length=8)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_pause_at_a_step_changes_nothing(tmp_path, optimizer):
    ground = task("set_complement", vocab=8)
    settings = TrainConfig(steps=12, batch=4, length=6, log_every=1, schedule={"warmup": 2}, optimizer=optimizer,
                           evaluate_at=(4, 9))  # fmt: skip

    def made(folder):
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(vocab_size=8, dim=8, depth=2, heads=2))
        return Trainer(model, ground, settings, tmp_path / folder, evaluate=lambda m: {"x": 1.0}, quiet=True)

    whole = made("whole").run()
    assert made("parts").run(until=7) == {}
    parts = made("parts").run()
    assert whole["loss"] == parts["loss"]
    logs = [
        [{k: v for k, v in r.items() if k != "seconds"} for r in read_log(tmp_path / name / "log.jsonl")]
        for name in ("whole", "parts")
    ]
    assert logs[0] == logs[1]
    assert [r["step"] for r in logs[0] if r["kind"] == "evaluation"] == [4, 9]
