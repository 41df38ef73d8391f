"""Losses against their definitions, windows, and loading that refuses."""

import math

import pytest
import torch

from normlab.errors import ConfigError, InputError
from normlab.probes.inputs import texts
from normlab.probes.inputs.hub import Loaded
from normlab.probes.inputs.losses import halves, pick
from tests.probes.zoo import Encoder, build, inputs


def test_causal_loss_is_the_librarys():
    model, batch = build("llama"), inputs("llama")
    with torch.no_grad():
        theirs = model(**batch, labels=batch["input_ids"]).loss
        assert float(pick("auto", model, batch)(model, batch)) == pytest.approx(float(theirs), rel=1e-6)
    assert pick("auto", model, batch).chance == pytest.approx(math.log(97))


def test_masked_loss_hides_what_it_asks_for():
    model, batch = build("bert"), inputs("bert", batch=8, tokens=40)
    seen = []
    model.register_forward_pre_hook(lambda m, a, k: seen.append(k["input_ids"]), with_kwargs=True)
    loss = pick("auto", model, batch, mask_id=3)
    with torch.no_grad():
        value = loss(model, batch)
        hidden = seen[0] == 3
        logits = model(input_ids=seen[0]).logits
        expected = torch.nn.functional.cross_entropy(logits[hidden], batch["input_ids"][hidden])
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    assert 0.08 < float(hidden.float().mean()) < 0.25
    assert torch.equal(seen[0][~hidden], batch["input_ids"][~hidden])


def test_special_tokens_are_never_masked():
    """Two of them in a short window can be half of the loss of a model that is nearly perfect."""
    model, batch = build("bert"), inputs("bert", batch=8, tokens=40)
    batch["input_ids"][:, 0], batch["input_ids"][:, 20], batch["input_ids"][:, -1] = 90, 91, 92
    seen = []
    model.register_forward_pre_hook(lambda m, a, k: seen.append(k["input_ids"]), with_kwargs=True)
    pick("auto", model, batch, mask_id=3, special_ids=(90, 91, 92))(model, batch)
    for column, token in ((0, 90), (20, 91), (-1, 92)):
        assert bool((seen[0][:, column] == token).all())
    assert bool((seen[0] == 3).any(1).all())


def test_images_make_a_contrastive_loss():
    model, batch = build("vit"), inputs("vit", batch=4)
    loss = pick("auto", model, batch)
    assert loss.name == "contrastive"
    assert loss.chance == pytest.approx(math.log(4))
    with torch.no_grad():
        assert math.isfinite(float(loss(model, batch)))


def test_a_head_that_no_loss_fits_gets_none():
    import transformers

    config = transformers.BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    assert pick("auto", transformers.BertForSequenceClassification(config), inputs("bert")) is None


def test_labels_in_a_batch_mean_the_models_own_loss():
    model, batch = build("llama"), inputs("llama")
    batch = {**batch, "labels": batch["input_ids"]}
    with torch.no_grad():
        assert float(pick("auto", model, batch)(model, batch)) == pytest.approx(float(model(**batch).loss))


def test_no_loss_is_guessed_from_random_weights():
    for seed in range(5):
        torch.manual_seed(seed)
        assert pick("auto", Encoder(norm_first=True), torch.randint(0, 97, (2, 40))) is None


def test_unknown_losses_are_named():
    with pytest.raises(ConfigError, match="did you mean 'masked'"):
        pick("maskd", build("bert"), inputs("bert"))
    with pytest.raises(InputError, match="id of the mask token"):
        pick("masked", build("bert"), inputs("bert"))


def test_halves_alternate_and_keep_the_frame():
    ids = torch.cat([torch.full((2, 1), 101), torch.arange(10, 74).expand(2, -1), torch.full((2, 1), 102)], 1)
    first, second = halves(ids, chunk=16)
    assert first[0].tolist() == [101, *range(10, 26), *range(42, 58), 102]
    assert second[0].tolist() == [101, *range(26, 42), *range(58, 74), 102]


class Words:
    """A tokenizer that frames like BERT's."""

    def __call__(self, text, add_special_tokens=True, **_):
        ids = [ord(letter) % 90 for letter in text]
        return {"input_ids": [95, *ids, 96] if add_special_tokens else ids}


def test_windows_are_framed_as_the_tokenizer_does():
    loaded = Loaded("words", build("bert"), Words())
    assert texts.frame(loaded) == ([95], [96])
    ids = torch.arange(60) % 90
    rows = texts.windows(ids, length=12, count=9, model=loaded.model, framing=texts.frame(loaded))
    assert rows.shape == (6, 12)
    assert rows[1].tolist() == [95, *range(10, 20), 96]


def test_the_sample_text_ships_and_is_long_enough():
    assert len(texts.read_text(None)) > 40_000


def test_limits():
    model = build("roberta")
    assert texts.position_limit(model) == 62  # two positions are RoBERTa's padding offset
    assert texts.vocabulary_size(model) == 97
    with torch.no_grad():
        model(input_ids=torch.randint(5, 97, (1, 62)))  # the limit works
    with pytest.raises(InputError, match="longer than"):
        texts.windows(torch.arange(90), length=63, count=1, model=model)
