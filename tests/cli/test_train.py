"""normlab train: what cannot run leaves no folder behind. tests/training/test_distributed.py has torchrun."""

import json
import signal
import subprocess
import sys
import time

import pytest

from normlab.cli import run

CONFIG = {
    "model": {"vocab_size": 256, "dim": 16, "depth": 1, "heads": 2},
    "task": {"task": "text"},
    "train": {"steps": 2, "batch": 2, "length": 16, "schedule": {"warmup": 1}},
    "measure": {"validations": 1, "curve_sequences": 2, "sequences": 2, "layers": [], "prune": False},
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["task.path=nowhere.txt"], "cannot read the text file 'nowhere.txt'"),
        (["train.length=9999999"], "too few for windows of 9999999 tokens"),
        (["task.targets=exact"], "has no known next-token law"),
        (["model.positions=learned", "model.max_length=8"], "train.length: 16 is beyond the 8 learned positions"),
    ],
)
def test_what_cannot_run_leaves_nothing(changes, sentence, config, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["train", str(config), *changes, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not out.exists()
    assert run(["train", str(config), "--out", str(out)]) == 0


def test_one_process_of_torchrun_speaks_and_all_leave_the_sentence(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert run(["train", str(config), "task.path=nowhere.txt", "--out", str(tmp_path / "out")]) == 2
        assert ("cannot read the text file" in capsys.readouterr().err) is (rank == "0")
        left = json.loads((tmp_path / "error.json").read_text())["message"]
        assert left["message"].startswith("normlab: cannot read the text file 'nowhere.txt'")
        (tmp_path / "error.json").unlink()


def test_what_is_finished_needs_no_data(config, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("to be or not to be " * 50)
    arguments = ["train", str(config), f"task.path={text}", "--out", str(out)]
    assert run(arguments) == 0
    text.unlink()
    assert run(arguments) == 0


def test_ctrl_c_says_what_is_kept(config, tmp_path):
    """A real signal to a real process, once it is truly training; the same command then goes on."""
    out = tmp_path / "out"
    words = [sys.executable, "-m", "normlab", "train", str(config), "train.steps=100000", "train.log_every=1"]
    process = subprocess.Popen([*words, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not ((out / "log.jsonl").exists() and (out / "log.jsonl").stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; what was finished is kept" in said
    assert "Traceback" not in said
    assert list((out / "checkpoint").glob("step-*"))


@pytest.mark.parametrize(
    "words", [["train", "a\0b"], ["report", "a\0b"], ["train", "/dev/zero"], ["report", "/dev/zero"]]
)
def test_paths_that_are_none_are_one_sentence(words, capsys):
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.strip()


def test_the_example_runs(tmp_path, capsys):
    assert run(["train", "--example"]) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    small = ["train.steps=2", "train.schedule.warmup=1", "model.depth=2", "model.dim=16", "train.length=16"]
    assert run(["train", str(tmp_path / "run.yaml"), *small, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"folder: {tmp_path / 'out'}"


@pytest.mark.parametrize("where", ["file", "override"])
def test_few_steps_shorten_a_warm_up_that_nobody_asked_for(where, tmp_path, capsys):
    train = {key: value for key, value in CONFIG["train"].items() if key != "schedule"}
    if where == "override":
        del train["steps"]
    (tmp_path / "run.json").write_text(json.dumps({**CONFIG, "train": train}))
    overrides = ["train.steps=20"] if where == "override" else []
    assert run(["train", str(tmp_path / "run.json"), *overrides, "--out", str(tmp_path / "out")]) == 0
    steps = 20 if where == "override" else 2
    assert f"warm-up: {steps // 10} of {steps} steps, where 100 are usual" in capsys.readouterr().err
    assert f"warmup: {steps // 10}" in (tmp_path / "out" / "config.yaml").read_text()


def test_a_warm_up_that_was_asked_for_stands(config, tmp_path, capsys):
    assert run(["train", str(config), "train.schedule.warmup=3", "--out", str(tmp_path / "out")]) == 2
    assert "give schedule.warmup=0 or more steps" in capsys.readouterr().err


@pytest.mark.slow  # a quarter of a minute of the compiler
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # the compiler's own
def test_compiled_branches_learn_the_same(config, tmp_path):
    found = []
    for name, more in (("eager", []), ("compiled", ["--compile"])):
        assert run(["train", str(config), "--out", str(tmp_path / name), *more]) == 0
        found.append(json.loads((tmp_path / name / "summary.json").read_text())["validation"])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_compile_is_for_one_process(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert run(["train", str(config), "--out", str(tmp_path / "out"), "--compile"]) == 2
    assert "leave it out under torchrun" in capsys.readouterr().err
