import json
import subprocess
import sys

import pytest

import normlab as nl
from normlab.cli import run


@pytest.fixture
def model_file(tmp_path):
    config = nl.TransformerConfig(vocab_size=50, dim=32, depth=4, heads=4, positions="learned", max_length=8)
    path = tmp_path / "model.yaml"
    path.write_text(config.to_yaml())
    return path


def test_a_checked_config_is_a_config(model_file, capsys):
    assert run(["config", str(model_file), "depth=6", "scheme=block-attn-res", "scheme.blocks=3"]) == 0
    text = capsys.readouterr().out
    config = nl.TransformerConfig.from_yaml(text)
    assert (config.depth, config.scheme) == (6, nl.scheme("block_attn_res", blocks=3))
    assert f"# parameters: {nl.Transformer(config).num_parameters()}" in text


def test_json_and_schema(model_file, capsys):
    assert run(["config", str(model_file), "--json", "--tokens", "1,2,3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["scheme"]["name"] == "pre_norm"
    assert 0 <= found["most likely next token, untrained"] < 50
    assert run(["config", "--schema"]) == 0
    assert "block_size" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scheme=pre_nrom"], "did you mean 'pre_norm'"),
        (["heads=5"], "5 heads do not divide the width 128"),
        (["scheme=block_attn_res", "scheme.blocks=99"], "99 is more than the model's 12 branches"),
        (["depth=-1"], "depth"),
        (["--tokens", "1,300"], "0 to 255, but these run from 1 to 300"),
        (["positions=learned", "max_length=2", "--tokens", "1,2,3"], "3 tokens is longer than the 2 learned positions"),
        (["--tokens", "a"], "whole numbers"),
        (["nothing.yaml"], "cannot read"),
        (["depth"], "cannot read"),
        (["depth=3", "heads"], "key=value"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, capsys):
    assert run(["config", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_yaml_typo_from_a_shell(model_file):
    model_file.write_text(model_file.read_text().replace("depth:", "dpeth:"))
    done = subprocess.run(
        [sys.executable, "-m", "normlab", "config", str(model_file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "dpeth" in done.stderr
    assert "did you mean 'depth'" in done.stderr
    assert "Traceback" not in done.stderr
