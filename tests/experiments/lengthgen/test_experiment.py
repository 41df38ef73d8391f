import csv
import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from normlab.cli import run as cli
from normlab.experiments.executors.local import LocalExecutor
from normlab.experiments.lengthgen.experiment import EXPERIMENT, runs_of
from normlab.experiments.lengthgen.request import LengthgenRequest
from normlab.experiments.runs.config import RunConfig
from normlab.experiments.runs.folder import prepare
from normlab.experiments.runs.stack import Job, prepare_job
from normlab.tasks import task
from tests.experiments.tiny import alone, sweep_of

SMALL = ["lengthgen", "--set", "vocab=8", "--schemes", "pre_norm,post-norm", "--seeds", "2", "--steps", "20", "--batch", "4",
         "--train-length", "4", "--workers", "1"]  # fmt: skip


def call(*arguments):
    return cli([str(a) for a in arguments])


def test_json_has_every_scheme_seed_weights_and_length(tmp_path, capsys):
    assert call(*SMALL, "--out", tmp_path, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    keys = {(r["scheme"], r["seed"], r["weights"], r["length"]) for r in result["rows"]}
    assert len(keys) == len(result["rows"]) == 2 * 2 * 3 * len(result["config"]["test_lengths"])
    for row in result["rows"]:
        assert 0 <= row["tv"] <= 1
        assert 0 <= row["auc"] <= 1
        assert 0 <= row["illegal_mass"] <= 1
    raw, ema = ([r["tv"] for r in result["rows"] if r["weights"] == kind] for kind in ("raw", "ema"))
    assert raw != ema
    rows = list(csv.DictReader((tmp_path / "lengthgen.csv").read_text().splitlines()))
    assert [float(r["tv"]) for r in rows] == pytest.approx([r["tv"] for r in result["rows"]])
    assert {(r["scheme"], r["stopped early"]) for r in result["stability"]} == {("pre_norm", 0), ("post_norm", 0)}
    log = [
        json.loads(x) for s in (0, 1) for x in (tmp_path / f"pre_norm-nope-seed{s}/log.jsonl").read_text().splitlines()
    ]
    assert result["stability"][0]["largest"] == max(r["grad_norm"] for r in log if r["kind"] == "train")
    page = (tmp_path / "report.html").read_text()
    assert "Total variation" in page
    assert (tmp_path / "pre_norm-nope-seed0" / "config.yaml").exists()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")}
    assert call(*SMALL, "--out", tmp_path, "--json") == 0  # the second time nothing is trained
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")} == before
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.slow
def test_kill_9_of_two_workers_then_rerun(tmp_path):
    arguments = [sys.executable, "-m", "normlab", *SMALL, "--workers", "2", "--steps", "300", "--json", "--out"]
    whole = subprocess.run([*arguments, str(tmp_path / "whole")], capture_output=True, check=True)
    process = subprocess.Popen(
        [*arguments, str(tmp_path / "cut")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list((tmp_path / "cut").glob("*/checkpoint/step-*")):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = subprocess.run([*arguments, str(tmp_path / "cut")], capture_output=True, check=True)
    a, b = json.loads(whole.stdout), json.loads(again.stdout)
    assert a["rows"] == b["rows"]


def small(**options) -> LengthgenRequest:
    defaults = {"task": task("dyck"), "preset": "two_layer", "train_length": 8, "test_lengths": (8, 16), "steps": 3}
    return LengthgenRequest(**{**defaults, **options})


def test_cells_cover_the_product_and_fixes_reach_the_model():
    config = small(fixes=("none", "ssmax", "adaptive", "head_norm"), positions=("nope", "rope"), seeds=2)
    cells = runs_of(config)
    assert len(cells) == 4 * 4 * 2 * 2
    assert cells["pre_norm-ssmax-rope-seed1"].model.softmax == "ssmax"
    assert cells["post_norm-head_norm-nope-seed0"].model.head_norm
    assert RunConfig.from_yaml(cells["pre_norm-ssmax-rope-seed1"].to_yaml()) == cells["pre_norm-ssmax-rope-seed1"]


def test_widths_depths_and_rates_reach_the_model():
    cells = runs_of(small(dims=(8, 16), head_dims=(2, 6), lrs=(1e-3, 1e-2), depth=3, schemes=("pre_norm",), seeds=1))
    assert len(cells) == 8
    cell = cells["pre_norm-d8-dv6-lr0.01-nope-seed0"]
    assert (cell.model.dim, cell.model.size_of_head, cell.model.depth, cell.train.lr) == (8, 6, 3, 1e-2)
    assert set(runs_of(small(dims=(8,), seeds=1, schemes=("pre_norm",)))) == {"pre_norm-nope-seed0"}  # nothing varies


def test_a_named_experiment_runs_its_parts_and_options_win(tmp_path, capsys):
    arguments = ["lengthgen", "--experiment", "dyck-beyond-depth", "--seeds", "2", "--steps", "3", "--schemes",
                 "pre_norm,peri_norm", "--dim", "8", "--test-lengths", "8", "--test-count", "8", "--workers", "1",
                 "--out", tmp_path]  # fmt: skip
    assert call(*arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["parts"]) == {"deeper", "longer"}
    assert result["parts"]["deeper"]["config"]["test_task"]["depth"] == 5
    for part in result["parts"].values():
        assert part["config"]["train_length"] == 16  # the experiment's
        assert (part["config"]["steps"], part["config"]["seeds"]) == (3, 2)  # the command line's
        assert {row["against"] for row in part["against_first"]} == {"pre_norm"}
    assert call(*arguments) == 0
    assert "undecided" in capsys.readouterr().out


def test_small_cells_are_stacked_and_equal_separate_ones(tmp_path, capsys):
    arguments = [*SMALL, "--schemes", "post_norm", "--seeds", "8", "--out"]
    assert call(*arguments, tmp_path / "stacked") == 0
    assert "stacked, since an activation has 112 numbers" in capsys.readouterr().err
    arguments = [*arguments[:-1], "--json", "--out"]
    assert call(*arguments, tmp_path / "stacked") == 0
    stacked = json.loads(capsys.readouterr().out)
    assert {r["how"] for r in stacked["runs"].values()} == {"stacked"}
    assert call("theory", "set-complement", "--run", tmp_path / "stacked/post_norm-nope-seed2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trained"]["scheme"] == "post_norm"
    assert call(*arguments, tmp_path / "apart", "--seeds", "1", "--seed", "3") == 0
    apart = json.loads(capsys.readouterr().out)
    assert {r["how"] for r in apart["runs"].values()} == {"separate"}
    for row in apart["rows"]:
        keys = ("seed", "weights", "length")
        (same,) = (r for r in stacked["rows"] if all(r[k] == row[k] for k in keys))
        assert same["tv"] == pytest.approx(row["tv"], abs=1e-4)


def test_more_seeds_later_leave_what_is_finished(tmp_path, capsys):
    """Eight seeds are stacked; two more run beside them, and three that ran apart are not trained again."""
    arguments = ["lengthgen", "--task", "tomita", "--preset", "two-layer", "--schemes", "pre_norm", "--dim", "8",
                 "--batch", "2", "--train-length", "4", "--test-lengths", "4", "--test-count", "4", "--steps", "6",
                 "--json", "--out"]  # fmt: skip

    def stamps(folder):
        return {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}

    for first in (8, 3):
        out = tmp_path / str(first)
        assert call(*arguments, out, "--seeds", first) == 0
        assert {r["how"] for r in json.loads(capsys.readouterr().out)["runs"].values()} == {
            "stacked" if first == 8 else "separate"
        }
        before = stamps(out)
        assert len(before) == first
        assert call(*arguments, out, "--seeds", first + 8) == 0
        assert len(json.loads(capsys.readouterr().out)["runs"]) == first + 8
        assert before.items() <= stamps(out).items()


def carry_out(request, folder):
    """With one worker of its own: a stack is a process' work too."""
    with LocalExecutor(workers=1) as local:
        return EXPERIMENT.carry_out(request, sweep_of(folder, local))


def test_rates_are_stacked_too_and_equal_separate_runs(tmp_path):
    config = small(schemes=("pre_norm",), seeds=4, lrs=(1e-3, 1e-2), steps=6, dims=(8,), batch=2, test_count=8)
    together = carry_out(config, tmp_path / "all").runs
    assert {note.how for note in together.values()} == {"stacked"}
    name, run = next((n, c) for n, c in runs_of(config).items() if c.train.lr == 1e-2 and c.train.seed == 2)
    apart = alone(prepare(tmp_path / "alone", run))
    assert together[name].loss == pytest.approx(apart.summary.loss, abs=2e-5)
    assert len({round(note.loss, 6) for note in together.values()}) == 8


def test_a_stack_that_was_begun_goes_on_as_it_was(tmp_path):
    begun = runs_of(small(schemes=("pre_norm",), seeds=8, steps=12))
    prepare_job(Job(tuple(begun), "stacked", "a test"), begun, tmp_path)
    found = carry_out(small(schemes=("pre_norm",), seeds=9, steps=12), tmp_path)
    assert [note.how for note in found.runs.values()] == ["stacked"] * 8 + ["separate"]


def test_scoring_on_a_deeper_task(tmp_path, capsys):
    arguments = ["lengthgen", "--task", "dyck", "--preset", "two-layer", "--dim", "8", "--schemes", "peri_norm", "--seeds",
                 "1", "--steps", "5", "--batch", "4", "--test-lengths", "8", "--workers", "1", "--json"]  # fmt: skip
    assert call(*arguments, "--out", tmp_path / "same") == 0
    same = json.loads(capsys.readouterr().out)["rows"]
    assert call(*arguments, "--test-set", "depth=5", "--out", tmp_path / "deep") == 0
    deep = json.loads(capsys.readouterr().out)["rows"]
    assert [r["tv"] for r in same] != [r["tv"] for r in deep]
    assert call(*arguments, "--test-set", "pairs=3", "--out", tmp_path / "other") == 2
    assert "7 tokens are not the 5 of the training task" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["max_retrieval", "tomita", "dyck"])
def test_every_task_runs_through(tmp_path, name):
    config = next(iter(runs_of(small(task=task(name), test_count=8)).values()))
    run = alone(prepare(tmp_path, config))
    assert run.summary.status == "finished"
    assert run.summary.at_length("bema", 16).tv > 0
    tokens = task(name).sample(2, 4, torch.Generator()).tokens
    assert config.build().embedding(tokens).shape == (2, 4, 64)


def test_the_report_comes_from_the_folder(tmp_path, capsys):
    assert call(*SMALL, "--out", tmp_path / "run", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert call("report", tmp_path / "run", "--out", tmp_path / "again", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert {k: v for k, v in again.items() if k != "report"} == {k: v for k, v in result.items() if k != "report"}
    (tmp_path / "run" / "sweep.json").unlink()  # as before there was one kind of sweep
    assert call("report", tmp_path / "run", "--out", tmp_path / "old", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == result["rows"]


def test_schemes_with_options_have_rows_of_their_own(tmp_path, capsys):
    schemes = "attn_res,block_attn_res(blocks=2)"
    arguments = [*SMALL[:3], "--preset", "two-layer", "--dim", "8", *SMALL[5:], "--seeds", "1", "--schemes", schemes]
    assert call(*arguments, "--steps", "3", "--out", tmp_path, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["scheme"] for row in rows} == {"attn_res", "block_attn_res(blocks=2)"}


def test_options_reach_the_runs():
    asked = LengthgenRequest(
        task=task("set_complement", vocab=8), schemes=("pre_norm(final_norm=False)", "no_norm"), seeds=1, train_length=4,
        test_lengths=(4,), steps=100, norm="l2", fixes=("sparsemax", "top_k"), weight_decay=0.0, schedule="constant",
        average_every=7, average_eta=0.5, average_burn_in=3, evaluate_at=(10,),
    )  # fmt: skip
    runs = runs_of(asked)
    assert len(runs) == 4
    for run in runs.values():
        assert run.model.norm == "l2"
        assert run.model.softmax in ("sparsemax", "top_k")
        assert run.train.schedule.kind == "constant"
        assert run.train.weight_decay == 0
        assert (run.train.average.every, run.train.average.eta, run.train.average.burn_in) == (7, 0.5, 3)
        assert run.train.evaluate_at == (10,)
    assert {run.model.scheme.name for run in runs.values()} == {"pre_norm", "no_norm"}
