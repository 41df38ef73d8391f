"""A name is enough: the model is loaded and the text that ships with normlab is cut for it."""

import pytest
import torch

import normlab as nl
from normlab.errors import InputError
from normlab.probes.inputs.request import DiagnoseOptions
from normlab.probes.inputs.sources import SAMPLE, Material, prepare
from tests.cli.test_diagnose import WORDS, save_model

TEXT = " ".join(WORDS * 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "llama"
    save_model(place)
    return place


def test_windows_are_no_longer_than_the_model_can_read(folder):
    made = prepare(str(folder), Material(text=TEXT), DiagnoseOptions())
    assert [batch["input_ids"].shape for batch in made.batches] == [(8, 128)]  # 128 positions, not 256
    assert made.options.mask_id == 1
    assert (made.name, made.text, made.images) == ("llama", "a text that was given", None)


def test_token_ids_stay_as_they_are(folder):
    ids = torch.arange(40).repeat(20)
    made = prepare(str(folder), Material(text=ids, window=16, windows=3), DiagnoseOptions())
    assert torch.equal(made.batches[0]["input_ids"].flatten(), ids[:48])


def test_a_folder_in_python(folder, tmp_path, monkeypatch):
    sample = tmp_path / "sample.txt"
    sample.write_text(TEXT)
    monkeypatch.setattr("normlab.probes.inputs.texts.SAMPLE", sample)
    for given in (folder, str(folder)):
        found = nl.diagnose(given, skips=False, lengths=(64,))
        assert (found.name, found.how.window, found.how.text) == ("llama", 128, SAMPLE)
        assert found.loss.name == "causal"


def test_a_folder_with_batches_of_ones_own(folder):
    found = nl.diagnose(folder, torch.randint(0, 40, (2, 16)), skips=False, lengths=(8,))
    assert (found.name, found.how.tokens) == ("llama", 32)


@pytest.mark.parametrize(("model", "said"), [(3, "int was given"), (torch.nn.Linear(2, 2), "needs batches")])
def test_what_is_no_model_or_lacks_batches(model, said):
    with pytest.raises(InputError, match=said):
        nl.diagnose(model)
