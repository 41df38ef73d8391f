"""normlab dynamics: keys, numbers, errors."""

import json
import subprocess
import sys

import pytest

from normlab.cli import run

KEYS = {"initial_velocity", "initial_velocity_theory", "constant", "constant_theory", "hitting_times"}


def _json(capsys, *arguments):
    assert run(["dynamics", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_papers_table(capsys, tmp_path):
    found = _json(capsys, "--out", str(tmp_path))
    assert list(found["schemes"]) == ["post_norm", "pre_norm", "mix_norm", "peri_norm", "ngpt", "sqrt_scaling"]
    for row in found["schemes"].values():
        assert set(row) >= KEYS
        assert ("terminal_exponent" in row) != ("terminal_rate" in row)
        assert row["initial_velocity"] == pytest.approx(row["initial_velocity_theory"], rel=1e-12)
        assert row["constant"] == pytest.approx(row["constant_theory"], rel=1e-6)
    assert found["schemes"]["pre_norm"]["terminal_exponent"] == pytest.approx(3.0, abs=0.02)
    assert found["schemes"]["peri_norm"]["hitting_times"]["0.5"] == pytest.approx(3.714, abs=1e-3)
    assert (tmp_path / "dynamics.html").exists()


def test_a_random_start_reports_each_seed_and_its_variance_law(capsys, tmp_path):
    found = _json(
        capsys, "--init", "cone", "--n", "12", "--d", "8", "--beta", "1", "--seeds", "2", "--time", "4",
        "--schemes", "post,ngpt", "--out", str(tmp_path),
    )  # fmt: skip
    row = found["schemes"]["post_norm"]
    assert list(row["hitting_times_by_seed"]) == ["0", "1"]
    assert row["variance_rate"]["measured"] == pytest.approx(row["variance_rate"]["theory"], rel=0.01)
    assert row["initial_velocity_theory"] is None


def test_text_start_and_fresh_weights_run(capsys, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("one two three one two four five six")
    found = _json(
        capsys, "--init", "text", "--text", str(words), "--n", "8", "--d", "8", "--weights", "fresh", "--heads", "2",
        "--causal", "--ffn", "--time", "3", "--schemes", "peri", "--out", str(tmp_path),
    )  # fmt: skip
    assert found["equation"] == "particles"
    assert "no theorem" in found["schemes"]["peri_norm"]["clustering"]


def test_a_short_tail_warns(capsys, tmp_path):
    found = _json(capsys, "--schemes", "pre", "--tail", "20", "--out", str(tmp_path))
    assert "too small to read a power law" in found["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--beta", "-1"], "beta = -1"),
        (["--n", "1"], "at least two tokens"),
        (["--tau", "12"], "tau = 12 of mix_norm is outside the interval (0, 10)"),
        (["--schemes", "hyper-connections"], "they cover post_norm, pre_norm, mix_norm"),
        (["--schemes", "post", "--tau", "3"], "--tau is for mix_norm"),
        (["--init", "uniform", "--time", "1000", "--max-steps", "5", "--n", "8"], "more than the 5 steps allowed"),
        (["--init", "conic"], "did you mean 'cone'"),
        (["--preset", "figure"], "unknown preset"),
        (["--preset", "random-figure", "--n", "32"], "--n does not go with --preset random-figure"),
        (["--text", "/nowhere.txt", "--init", "text"], "cannot read the text file"),
        (["--schemes", ","], "--schemes is empty"),
        (["--beta", "1000"], "use a smaller beta"),
        (["--time", "0"], "greater than 0"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path):
    assert run(["dynamics", "--out", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_help_loads_neither_torch_nor_scipy():
    code = (
        "import sys; from normlab.cli import run; run(['dynamics', '-h']);"
        "print([m in sys.modules for m in ('torch', 'scipy')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[False, False]\n")


def test_steps_and_temperatures_as_formulas(capsys, tmp_path):
    shape = ["--n", "32", "--time", "5", "--out", str(tmp_path), "--json"]
    assert run(["dynamics", "--schemes", "ngpt", "--alpha", "1/(1+t)", *shape]) == 0
    found = json.loads(capsys.readouterr().out)["schemes"]["ngpt"]
    assert found["law"] == "clocked"
    assert run(["dynamics", "--schemes", "post", "--heat", "0.2 + 0.8*min(t/2.5, 1)", *shape]) == 0
    cooler = json.loads(capsys.readouterr().out)["schemes"]["post_norm"]
    assert cooler["constant_theory"] is None, "no closed form where beta varies"
    assert run(["dynamics", "--schemes", "ngpt", "--alpha", "t", *shape]) == 2
    assert "must be positive" in capsys.readouterr().err
    assert run(["dynamics", "--schemes", "ngpt", "--alpha", "sin(t)", *shape]) == 2
    assert "a formula in t" in capsys.readouterr().err
