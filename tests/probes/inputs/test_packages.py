"""Weights inside installed packages, and folders that say too little: made here, with nothing of theirs run."""

import json

import pytest
import torch
import transformers

from normlab.errors import InputError, UnsupportedError
from normlab.probes.inputs.hub import load
from normlab.probes.inputs.packages import package_weights
from normlab.probes.inputs.texts import frame, tokenize

WORDS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "c", "O", "N", "(", ")", "=", "1", ">", "."]
SHAPE = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with two models whose import would fail: it must not be imported."""
    root = tmp_path / "site" / "carried_weights"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("raise SystemExit('this package was imported')")
    monkeypatch.syspath_prepend(str(root.parent))
    return root


def old_style(folder, model, *, drop=("model_type", "architectures")):
    """As checkpoints of 2020 lie about: a pickle, a vocab.txt, and a config.json without model_type."""
    folder.mkdir(parents=True)
    values = {k: v for k, v in model.config.to_dict().items() if k not in drop and v is not None}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    torch.save({"learning_rate": 1}, folder / "training_args.bin")


def bert(kind="BertForMaskedLM"):
    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BertConfig(**SHAPE, intermediate_size=48)).eval()


def test_one_of_several_models_is_named(package):
    old_style(package / "models" / "first", bert())
    old_style(package / "models" / "second", bert())
    assert package_weights("carried-weights/second").name == "second"
    with pytest.raises(InputError, match=r"carries 2 models: pass one of package:carried-weights/first, package:"):
        package_weights("carried-weights")
    with pytest.raises(InputError, match=r"no model 'secnd'; did you mean 'second'\?"):
        package_weights("carried-weights/secnd")


def test_pickles_are_refused_unless_asked_and_then_read_as_weights_only(package):
    old_style(package / "only", bert())
    with pytest.raises(UnsupportedError, match="--allow-pickle"):
        load("package:carried-weights")

    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('code of the pickle was run')",))

    torch.save({"bert.embeddings.word_embeddings.weight": Evil()}, package / "only" / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than tensors; its code was not run"):
        load("package:carried-weights", allow_pickle=True)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertModel"])
def test_a_config_without_model_type_is_read_from_the_names_of_the_weights(package, kind):
    model = bert(kind)
    old_style(package / "only", model)
    loaded = load("package:carried-weights", allow_pickle=True)
    assert type(loaded.model).__name__ == kind
    assert "the names of the weights say bert" in loaded.notes[0]
    ids = torch.randint(6, len(WORDS), (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(input_ids=ids)[0], model(input_ids=ids)[0])


def test_a_vocabulary_beside_the_weights_is_believed(package):
    """transformers 5 makes an ALBERT tokenizer of special tokens alone, numbered from 0, and says nothing."""
    torch.manual_seed(0)
    config = transformers.AlbertConfig(**SHAPE, intermediate_size=48, embedding_size=16)
    old_style(package / "only", transformers.AlbertForMaskedLM(config), drop=())
    loaded = load("package:carried-weights", allow_pickle=True)
    assert frame(loaded) == ([3], [4])
    assert loaded.tokenizer.mask_token_id == 5
    assert tokenize(loaded, "C ( = O ) N").tolist() == [6, 10, 12, 8, 11, 9]
    with pytest.raises(InputError, match="knows only 0 % of the pieces of this text"):
        tokenize(loaded, "a text in plain English")
