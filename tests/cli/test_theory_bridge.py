"""normlab theory bridge: over random networks, saved models, and runs with the tokens they were trained on."""

import json

import pytest
import torch
import transformers
import yaml

import normlab as nl
from normlab.cli import run as normlab
from normlab.probes.inputs.runs import load_run
from normlab.tasks import Text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    model = nl.TransformerConfig(vocab_size=256, dim=16, depth=3, heads=2, scheme=nl.scheme("peri_norm"))
    settings = {
        "model": model.to_dict(),
        "task": Text().to_dict(),
        "train": {"steps": 4, "batch": 2, "length": 16, "schedule": {"warmup": 1}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    assert normlab(["train", str(folder / "config.yaml"), "--out", str(folder / "tiny")]) == 0
    return folder / "tiny"


def test_the_tokenizer_of_a_run_is_that_of_its_task(run):
    loaded = load_run(str(run))
    ids = loaded.tokenizer("Fear no more", add_special_tokens=False)["input_ids"]
    assert ids == list(b"Fear no more")
    assert Text().decode(torch.tensor(ids)) == "Fear no more"


def test_bridge_over_a_run(run, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("Fear no more the heat o' the sun, nor the furious winter's rages. " * 4)
    arguments = ["theory", "bridge", str(run), "--text", str(text), "--out", str(tmp_path), "--json"]
    assert normlab(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)["bridges"]
    assert found["scheme"] == "peri_norm"
    assert len(found["measured"]) == 7  # six branches and the end
    assert found["kernel_error"] < 0.3  # 16 channels: the kernel is that of many
    assert (tmp_path / "bridge.html").is_file()


def test_the_scheme_of_a_run_is_not_a_choice(run, tmp_path, capsys):
    arguments = ["theory", "bridge", str(run), "--schemes", "post_norm", "--out", str(tmp_path)]
    assert normlab(arguments) == 2
    assert "was trained with peri_norm" in capsys.readouterr().err


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert normlab(["theory", "bridge", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_random_networks(capsys, tmp_path):
    arguments = ["theory", "bridge", "--schemes", "post,peri", "--dim", "64", "--depth", "2", "--out", str(tmp_path)]
    assert normlab([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bridges"]
    assert [f["scheme"] for f in found] == ["post_norm", "peri_norm"]
    assert (tmp_path / "bridge.html").exists()
    assert normlab(arguments) == 0
    assert "kernel's miss" in capsys.readouterr().out


def test_a_saved_model(capsys, tmp_path):
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.AutoConfig.for_model("llama", vocab_size=64, bos_token_id=0, eos_token_id=0, **sizes)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    capsys.readouterr()
    arguments = ["theory", "bridge", str(tmp_path / "model"), "--out", str(tmp_path)]
    assert normlab([*arguments, "--schemes", "pre", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bridges"][0]["scheme"] == "pre_norm"
    assert normlab(arguments) == 2
    assert "say where the model's norms are" in capsys.readouterr().err
    assert normlab(["theory", "bridge", str(tmp_path / "nothing"), "--schemes", "pre", "--out", str(tmp_path)]) == 2
    assert "there is no folder" in capsys.readouterr().err
