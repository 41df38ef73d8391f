"""A run with its config on disk: whole, resumable, never trained by two at once."""

import json
import subprocess
import sys

import pytest
import torch

from normlab.errors import ConfigError, InputError
from normlab.experiments.runs.folder import load, locked, prepare, read_summary
from normlab.experiments.runs.trainer import RunTrainer
from normlab.training.record import read_log
from tests.experiments.tiny import alone, tiny


def test_run_records_everything(tmp_path):
    folder = prepare(tmp_path / "a", tiny())
    summary = alone(folder).summary
    assert summary.status == "finished"
    assert summary.tokens == 8 * 4 * 8
    assert summary.tokens_per_second > 0
    assert summary.activation_bytes > 0
    assert summary.parameters == load(folder).build().num_parameters()
    curve = read_log(folder / "log.jsonl", "validation")
    assert [r["step"] for r in curve] == [2, 4, 6, 8]
    assert curve[-1]["loss"] == pytest.approx(summary.validation)  # the same sequences: `tiny` has as many for both
    assert summary.weights["raw"]["loss"] == pytest.approx(summary.validation)
    layers = read_log(folder / "log.jsonl", "layers")
    assert [r["step"] for r in layers] == [0, 4, 8]
    assert len(layers[0]["magnitude"]) == 5
    assert sum(layers[0]["gradient_share"]) == pytest.approx(1)


def test_finished_cell_is_not_run_again(tmp_path):
    folder = prepare(tmp_path / "a", tiny())
    first = alone(folder)
    before = (folder / "log.jsonl").stat().st_mtime_ns
    assert alone(folder).summary == first.summary
    assert (folder / "log.jsonl").stat().st_mtime_ns == before


def test_interrupted_cell_equals_an_uninterrupted_one(tmp_path):
    """Stopped in the middle, in front of a validation and a layer record, and continued: the same log, line by line."""
    config = tiny()
    whole, parts = prepare(tmp_path / "whole", config), prepare(tmp_path / "parts", config)
    alone(whole)

    class Stopped(RunTrainer):
        def observe(self):
            if self.step == 5:
                raise RuntimeError("killed")
            super().observe()

    with pytest.raises(RuntimeError, match="killed"):
        Stopped(config.build(), config, parts).run()
    assert read_summary(parts) is None
    alone(parts)

    def records(folder):
        return [{k: v for k, v in r.items() if k != "seconds"} for r in read_log(folder / "log.jsonl")]

    assert records(parts) == records(whole)


def test_measuring_does_not_change_the_training(tmp_path):
    seen, blind = tiny(), tiny()
    blind = blind.replace(score=blind.held_out.replace(layers=(), validations=1, prune=False))
    a, b = prepare(tmp_path / "a", seen), prepare(tmp_path / "b", blind)
    alone(a), alone(b)
    losses = [[r["loss"] for r in read_log(f / "log.jsonl", "train")] for f in (a, b)]
    assert losses[0] == losses[1]


def test_same_seed_same_data_for_every_scheme():
    first = [tiny(scheme).task.sample(4, 8, torch.Generator().manual_seed(3)).tokens for scheme in ("pre_norm", "keel")]
    assert torch.equal(*first)


def test_another_config_in_the_folder_is_an_error(tmp_path):
    folder = prepare(tmp_path / "a", tiny(lr=1e-3))
    with pytest.raises(ConfigError, match=r"train\.lr is 0\.001 there and 0\.002 here"):
        prepare(folder, tiny(lr=2e-3))


def test_another_format_is_a_sentence(tmp_path):
    folder = prepare(tmp_path / "a", tiny())
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("format: 3", "format: 7"))
    with pytest.raises(InputError, match=r"has the format 7, and this normlab writes 3\); if another version wrote it"):
        load(folder)


def test_not_a_cell(tmp_path):
    with pytest.raises(InputError, match=r"no config\.yaml"):
        alone(tmp_path)
    folder = prepare(tmp_path / "a", tiny())
    (folder / "summary.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        read_summary(folder)


def test_divergence_is_an_outcome(tmp_path):
    folder = prepare(tmp_path / "a", tiny("no_norm", lr=1e4, steps=60, train={"clip": None, "patience": 3}))
    summary = alone(folder).summary
    assert summary.status == "diverged"
    json.loads((folder / "summary.json").read_text())


def test_the_lock_excludes_others(tmp_path):
    (tmp_path / ".lock").touch()
    script = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('taken', flush=True)"
    with locked(tmp_path):
        other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / ".lock")], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
    assert other.communicate(timeout=20)[0] == b"taken\n"


def test_the_loss_at_the_end_is_not_an_earlier_evaluation(tmp_path):
    found = alone(prepare(tmp_path, tiny(train={"evaluate_every": 3}))).summary
    assert found.validation == found.weights["raw"]["loss"]
    first = next(r for r in read_log(tmp_path / "log.jsonl", "evaluation"))
    assert found.validation != first["weights"]["raw"]["loss"]
