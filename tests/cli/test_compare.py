"""normlab compare and report from the command line, with real workers."""

import csv
import json
from pathlib import Path

import pytest

from normlab.cli import run
from normlab.experiments.runs.folder import load

TINY = ["--depth", "2", "--dim", "16", "--heads", "2", "--batch", "4", "--length", "8", "--data", "tomita(number=4)"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    arguments = [
        "compare",
        "--schemes",
        "pre-norm,peri_norm",
        *TINY,
        "--tokens",
        "320",
        "--lrs",
        "1e-3",
        "--seeds",
        "2",
    ]
    return [*arguments, "--workers", "2", "--out", str(out)], out


def test_compare_json_text_and_report(finished, capsys):
    arguments, out = finished
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["cells"]) == 4
    assert {cell["status"] for cell in result["cells"]} == {"finished"}
    assert Path(result["report"]).read_text().count("<h2") >= 3
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert "Nothing was learned" in shown  # 320 tokens
    assert "report.html" in shown
    page = out / "report.html"
    page.unlink()
    with open(out / "cells.csv", newline="") as file:
        assert {row["cell"]: float(row["loss"]) for row in csv.DictReader(file)} == {
            cell["cell"]: cell["loss"] for cell in result["cells"]
        }
    tables = (out / "tables.md").read_text()
    assert "## 2 layers of width 16" in tables
    assert "| scheme | loss |" in tables
    assert run(["report", str(out), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["settings"] == result["settings"]
    assert page.exists()


def test_reports_merge(finished, tmp_path, capsys):
    arguments, out = finished
    run(arguments)
    other = [*arguments[:2], "ln_scaling", *arguments[3:-1], str(tmp_path / "other")]
    assert run(other) == 0
    capsys.readouterr()
    assert run(["report", str(out), str(tmp_path / "other"), "--out", str(tmp_path / "merged"), "--json"]) == 0
    merged = json.loads(capsys.readouterr().out)
    (setting,) = merged["settings"]
    assert {row["scheme"] for row in setting["schemes"]} == {"pre_norm", "peri_norm", "ln_scaling"}
    assert (tmp_path / "merged" / "report.html").exists()
    assert run(["report", str(out), str(out), "--out", str(tmp_path / "same"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 4  # a cell counts once


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--schemes", "pre_norm,peri_nrm", "--tokens", "999"], "did you mean 'peri_norm'"),
        (["--tokens", "3"], "less than one step of 16 x 64 = 1024 tokens"),
        (["--budget", "soon"], "written like 90s, 10m or 2h"),
        (["--tokens", "2000", "--budget", "1m"], "give either tokens"),
        (["--depth", "two"], "--depth takes whole numbers"),
        (["--tokens", "2000", "--data", "nowhere.txt"], "the data file 'nowhere.txt' does not exist"),
        (["--tokens", "2000", "--data", "dykc"], "did you mean 'dyck'"),
        (["--tokens", "2000", "--executor", "slurm"], "unknown executor 'slurm'"),
        (["--tokens", "2000", "--heads", "5"], "5 heads do not divide"),
        (["--tokens", "2000", "--depth", "0"], "numbers of layers, each at least 1"),
        (["--budget", "10s", "--depth", ""], "numbers of layers, each at least 1"),
        (["--tokens", "2000", "--baseline", "keel"], "unknown baseline 'keel'"),
    ],
)
def test_bad_use_is_a_sentence(options, sentence, tmp_path, capsys):
    assert run(["compare", *options, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert sentence in said.err.replace("\n", " ")
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not (tmp_path / "out" / "sweep.json").exists()  # the corrected command is not another sweep


def test_a_preset_whose_options_are_overridden(tmp_path, capsys):
    given = [
        "--schemes",
        "pre_norm,peri_norm",
        *TINY,
        "--tokens",
        "320",
        "--lrs",
        "1e-3",
        "--seeds",
        "1",
        "--workers",
        "1",
    ]
    assert run(["compare", "--preset", "ladder-small", *given, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (setting,) = result["settings"]
    assert setting["setting"]["recipe"] == "authors"
    assert (
        len(list((tmp_path / "tuning").glob("*/summary.json"))) == 4
    )  # two seeds, two schemes, a quarter of the length
    assert len(result["cells"]) == 2
    assert run(["compare", "--preset", "lader"]) == 2
    assert "ladder" in capsys.readouterr().err


def test_muon(tmp_path, capsys):
    given = [*TINY, "--tokens", "160", "--lrs", "1e-3", "--seeds", "1", "--workers", "1", "--optimizer", "muon"]
    assert run(["compare", "--schemes", "pre_norm", *given, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["settings"][0]["setting"]["optimizer"] == "muon"
    assert result["cells"][0]["status"] == "finished"


def test_the_command_writes_configurations_that_begin_alike(tmp_path, capsys):
    """Embedding and matrices of the models that its folders hold; by recipes they differ, and a control runs beside them."""
    given = ["compare", "--schemes", "pre_norm,peri_norm", *TINY, "--dim", "32", "--tokens", "64", "--lrs", "1e-3",
             "--seeds", "1", "--workers", "1", "--json"]  # fmt: skip
    assert run([*given, "--out", str(tmp_path / "fair")]) == 0
    json.loads(capsys.readouterr().out)
    pre, peri = (sizes(tmp_path / "fair" / f"{name}-l2-lr0.001-s0") for name in ("pre_norm", "peri_norm"))
    assert len(pre) == 1 + 2 * (4 + 3)
    assert peri == pytest.approx(pre, rel=0.1)
    assert run([*given, "--recipe", "authors", "--out", str(tmp_path / "authors")]) == 0
    result = json.loads(capsys.readouterr().out)
    names = {row["scheme"] for row in result["settings"][0]["schemes"]}
    assert names == {"pre_norm", "peri_norm", "pre_norm @ peri_norm's start"}
    places = ("pre_norm", "peri_norm", "pre_norm-peri_norm")
    pre, peri, control = (sizes(tmp_path / "authors" / f"{name}-l2-lr0.001-s0") for name in places)
    assert peri[0] > 40 * pre[0]
    assert control == pytest.approx(peri, rel=0.1)


def sizes(folder):
    """The rms of the embedding in the stream, and the standard deviation of each matrix."""
    model = load(folder).build_ours()
    table = next(iter(model.token_tables()))
    matrices = [matrix for branch in model.branches for matrix in branch.matrices().values()]
    rms = float(table.square().mean().sqrt()) * model.config.scale_of_embedding
    return [rms, *(float(matrix.std()) for matrix in matrices)]
