"""A run folder becomes the model that was saved in it, or one sentence."""

import pytest
import torch

import normlab as nl
from normlab.errors import InputError
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.runs import is_run, load_run
from normlab.probes.inputs.sources import Material, prepare
from normlab.tasks import Text
from normlab.training import checkpoint

CONFIG = "vocab_size: 11\ndim: 16\ndepth: 2\nheads: 2\nmax_length: 8\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    model = nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=16, depth=2, heads=2, max_length=8))
    checkpoint.save(tmp_path / "checkpoint", 30, {"model": model.state_dict()}, {})
    return tmp_path, model.eval()


def test_the_model_computes_what_it_computed_when_it_was_saved(folder):
    path, model = folder
    loaded = load_run(str(path))
    tokens = torch.randint(0, 11, (2, 8))
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens), model(tokens))
    assert (loaded.name, loaded.tokenizer, loaded.notes) == (path.name, None, ["normlab run, step 30"])


def test_the_model_may_be_a_section_and_a_text_task_brings_its_tokens(folder):
    path, _ = folder
    section = "model:\n" + "".join(f"  {line}\n" for line in CONFIG.splitlines())
    (path / "config.yaml").write_text(section + "task: {task: text}\n")
    ids = load_run(str(path)).tokenizer("ab a")["input_ids"]
    assert ids[0] == ids[3] != ids[1]
    assert len(ids) == 4


def test_what_is_no_run_and_what_does_not_fit(folder, tmp_path_factory):
    path, _ = folder
    assert is_run(str(path))
    empty = tmp_path_factory.mktemp("empty")
    (empty / "config.yaml").write_text(CONFIG)
    assert not is_run(str(empty))
    (empty / "checkpoint").mkdir()
    with pytest.raises(InputError, match="holds no readable checkpoint"):
        load_run(str(empty))
    (path / "config.yaml").write_text(CONFIG.replace("dim: 16", "dim: 32"))
    with pytest.raises(InputError, match=r"does not fit its config\.yaml"):
        load_run(str(path))
    (path / "config.yaml").write_text("model: 3\n")
    with pytest.raises(InputError, match="no section 'model'"):
        load_run(str(path))


def test_a_run_of_a_backbone_says_what_to_do(folder):
    path, _ = folder
    (path / "config.yaml").write_text("model: {architecture: {model_type: llama}, scheme: {name: pre_norm}}\n")
    with pytest.raises(InputError, match="a run of the backbone llama, not of a Transformer"):
        load_run(str(path))


def test_a_run_is_measured_on_what_was_held_out_of_its_own_text(folder):
    """On another text, batches of a sound young model agree on how to change it, and 28 of 33 schemes were accused."""
    path, _ = folder
    model = nl.Transformer(nl.TransformerConfig(vocab_size=256, dim=16, depth=2, heads=2, max_length=512))
    checkpoint.save(path / "checkpoint", 60, {"model": model.state_dict()}, {})
    section = "model: {vocab_size: 256, dim: 16, depth: 2, heads: 2, max_length: 512}\n"
    (path / "config.yaml").write_text(section + "task: {task: text}\ntrain: {length: 32}\n")
    made = prepare(str(path), Material(), DiagnoseOptions())
    held_out = Text().held_out().stream
    assert torch.equal(torch.cat(made.batches).flatten(), held_out[:2048])
    assert made.text == "what was held out of the run's own text"
    given = prepare(str(path), Material(text="to be or not " * 99, named="mine.txt"), DiagnoseOptions())
    assert given.text == "mine.txt"
    assert not torch.equal(given.batches[0], made.batches[0])
    (path / "config.yaml").write_text(section + "task: {task: text, path: gone.txt}\ntrain: {length: 32}\n")
    lost = prepare(str(path), Material(), DiagnoseOptions())
    assert any("its own text cannot be read" in note for note in lost.notes)
    assert "Devil's" in lost.text


def test_a_run_is_measured_on_windows_as_long_as_in_training(folder):
    """Longer ones would test how it extends, and accuse a healthy run of not using its context."""
    path, _ = folder
    section = "model:\n" + "".join(
        f"  {line}\n" for line in CONFIG.replace("11", "256").replace(": 8", ": 512").splitlines()
    )
    model = nl.Transformer(nl.TransformerConfig(vocab_size=256, dim=16, depth=2, heads=2, max_length=512))
    checkpoint.save(path / "checkpoint", 60, {"model": model.state_dict()}, {})
    (path / "config.yaml").write_text(section + "task: {task: text}\ntrain: {length: 32}\n")
    options = DiagnoseOptions()
    assert {tuple(each.shape) for each in prepare(str(path), Material(), options).batches} == {(8, 32)}
    assert sum(each.numel() for each in prepare(str(path), Material(), options).batches) == 2048
    assert prepare(str(path), Material(window=64), options).batches[0].shape[1] == 64
    (path / "config.yaml").write_text(section + "task: {task: text}\n")
    assert prepare(str(path), Material(), options).batches[0].shape[1] == 256
