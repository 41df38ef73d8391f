"""Model folders from anywhere: nothing of theirs runs, nothing outside them is read, nothing random is measured."""

import json
import os
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from normlab.errors import InputError
from normlab.probes.inputs.hub import _into_place, load
from normlab.probes.inputs.packages import package_weights
from normlab.probes.inputs.texts import read_text, read_tokens

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
EVIL = """
open({mark!r}, "w").write("ran")
from transformers import PreTrainedTokenizerFast
class Evil(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def config_of(folder, **changes):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def rename(folder, change):
    path = folder / "model.safetensors"
    tensors = {name: t for old, t in load_file(path).items() if (name := change(old)) is not None}
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_whole_model_is_loaded(folder):
    loaded = load(str(folder))
    assert len(loaded.model.model.layers) == 3
    assert loaded.notes == []


def test_a_tokenizers_own_code_neither_runs_nor_asks(folder, tmp_path):
    """In a process whose standard input says yes to everything."""
    mark = tmp_path / "ran"
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    script = "import sys; from normlab.probes.inputs.hub import load; print('tokenizer', load(sys.argv[1]).tokenizer)"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], input="y\n" * 9, capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.returncode) == ("tokenizer None\n", 0), done.stderr
    assert not mark.exists()


MISSING = {
    "absent tensors": lambda f: rename(f, lambda n: None if "layers.1.mlp" in n else n),
    "other names": lambda f: rename(f, lambda n: n.replace("model.layers", "transformer.h")),
    "no num_hidden_layers": lambda f: config_of(f, num_hidden_layers=...),
    "more layers than weights": lambda f: config_of(f, num_hidden_layers=5),
}


@pytest.mark.parametrize("name", MISSING)
def test_weights_that_are_not_there_are_not_made_up(folder, name):
    MISSING[name](folder)
    with pytest.raises(InputError, match=r"lacks \d+ of the weights that its config.json asks for \(.*model\.layers"):
        load(str(folder))


REFUSED = {
    "compiled": (lambda f: rename(f, lambda n: f"_orig_mod.{n}"), "saved from a compiled model"),
    "fewer layers than weights": (
        lambda f: config_of(f, num_hidden_layers=2),
        "has 9 weights of layers that its config",
    ),
    "another width": (
        lambda f: config_of(f, intermediate_size=40),
        r"other shapes than .* says \(model\.layers",
    ),
    "inside another model": (lambda f: rename(f, lambda n: f"module.{n}"), "begin with 'module.'"),
    "a billion layers": (lambda f: config_of(f, num_hidden_layers=10**9), "at most 10,000 are read"),
    "many layers": (lambda f: config_of(f, num_hidden_layers=9999), "the weights beside it are only 30 tensors"),
    "a billion labels": (lambda f: config_of(f, num_labels=10**9), "at most 1,000,000 are read"),
    "an endless vocabulary": (lambda f: config_of(f, vocab_size=10**15), "at most 100,000,000 are read"),
    "no object": (lambda f: (f / "config.json").write_text("[]"), "is not a JSON object"),
    "deep": (lambda f: (f / "config.json").write_text("[" * 10**5), "is not JSON"),
    "not text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "is not UTF-8"),
    "no safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "not a file of safetensors"),
    "cut short": (lambda f: os.truncate(f / "model.safetensors", 2000), "not a file of safetensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_sentence(folder, name):
    change, says = REFUSED[name]
    change(folder)
    with pytest.raises(InputError, match=says) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "gone.safetensors"]
)
def test_an_index_names_files_of_its_folder_only(folder, shard):
    os.rename(folder / "model.safetensors", folder.parent / "secret.safetensors")
    save_file({"lm_head.weight": torch.zeros(64, 32)}, folder / "model-1.safetensors")
    table = {"weight_map": {"lm_head.weight": "model-1.safetensors", "model.norm.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    with pytest.raises(InputError, match=r"is not in the model folder|which is missing"):
        load(str(folder))


def test_links_lead_to_the_hubs_own_store_or_nowhere(folder, tmp_path):
    place = tmp_path / "hub" / "snapshots" / "abc"
    place.parent.mkdir(parents=True)
    folder.rename(place)
    blobs = tmp_path / "hub" / "blobs"
    blobs.mkdir()
    (place / "model.safetensors").rename(blobs / "123")
    (place / "model.safetensors").symlink_to("../../blobs/123")
    assert load(str(place)).notes == []
    (blobs / "123").rename(tmp_path / "secret")
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="outside the model folder"):
        load(str(place))


def test_a_vocabulary_that_is_no_text_is_passed_over(folder):
    (folder / "vocab.txt").write_bytes(b"\xff\xfe[UNK]")
    assert load(str(folder)).tokenizer is None


def test_a_head_that_is_not_read_does_no_harm(tmp_path):
    config = transformers.BertConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}, num_labels=7)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    assert load(str(tmp_path)).notes == []


@pytest.mark.parametrize("name", ["__main__", "a\0b", "os", ""])
def test_packages_that_are_none(name, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in a script: there the search for it raises
    with pytest.raises(InputError, match=r"is not installed here|carries no"):
        package_weights(name)


@pytest.mark.parametrize(
    "content", [b"GGUF", b"GGUF" + b"\xff" * 60, b"GGUF\x03\0\0\0" + b"\xff" * 16, b"", b"x" * 100]
)
def test_a_damaged_gguf_is_one_sentence(tmp_path, content, monkeypatch):
    pytest.importorskip("gguf")
    monkeypatch.setenv("NORMLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InputError, match="could not be read as a GGUF model") as caught:
        load(str(tmp_path / "model.gguf"))
    assert "\n" not in str(caught.value)


def test_texts_are_read_to_a_limit(tmp_path):
    path = tmp_path / "long.txt"
    with open(path, "wb") as file:
        file.write("é".encode() * 10)
        file.truncate(300 << 20)  # the rest is a hole: nothing on the disk
    assert len(read_text(path).encode()) == 16 << 20
    with pytest.raises(InputError, match="it is a device"):
        read_text("/dev/zero")
    with pytest.raises(InputError, match="larger than the 16 MB"):
        read_tokens(path)


@pytest.mark.parametrize("text", ["[1, [2]]", "[1e400]", "9" * 400, "[" * 10**5, "a b", '["x"]', "[null]"])
def test_token_ids_that_are_none(tmp_path, text):
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(InputError, match="cannot read token ids") as caught:
        read_tokens(path)
    assert "\n" not in str(caught.value)


def test_two_processes_that_read_one_gguf_file_leave_one_folder(tmp_path):
    """Both write a folder of their own; the second one finds the first in place, and takes it."""
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    folder = tmp_path / "kept"
    _into_place(tmp_path / "first", folder)
    _into_place(tmp_path / "second", folder)
    assert (folder / "config.json").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "third"]
    (folder / "config.json").rename(folder / "something-else")
    with pytest.raises(OSError, match="not empty"):
        _into_place(tmp_path / "third", folder)
