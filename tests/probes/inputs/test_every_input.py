"""Every kind of input that a user has at hand: none crashes, and padding is not text."""

import copy

import pytest
import torch
import transformers

from normlab.errors import InputError, UnsupportedError
from normlab.probes.diagnose import diagnose
from normlab.probes.inputs.losses import pick
from tests.probes.zoo import build, inputs

QUICK = {"skips": False, "lengths": (8,)}


def rows(found):
    return [row.norm for row in found.layers]


@pytest.fixture(scope="module")
def usual():
    return diagnose(build("llama"), [inputs("llama")], **QUICK)


def test_a_bare_tensor_a_dict_and_an_encoding_are_the_same(usual):
    ids = inputs("llama")["input_ids"]
    encoding = transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    for given in (ids, {"input_ids": ids}, encoding, [encoding], iter([ids])):
        found = diagnose(build("llama"), given, **QUICK)
        assert rows(found) == pytest.approx(rows(usual), rel=1e-6)
        assert found.loss.value == pytest.approx(usual.loss.value, rel=1e-6)


@pytest.mark.parametrize("given", ["a text", 3, [], ["a text"], [3]])
def test_what_is_no_batch_is_refused(given):
    with pytest.raises(InputError, match="batch"):
        diagnose(build("llama"), given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.ones(8, dtype=torch.long), r"shape \[8\].*ids\[None\]"),
        (torch.ones(0, 8, dtype=torch.long), "at least one of each"),
        ([[1, 2, 3]], "given as int"),
        ({"input_ids": [[1, 2], [3, 4]]}, 'return_tensors="pt"'),
        (torch.rand(2, 8), r"does not run on the first batch \(\[2, 8\] of float32\)"),
        (torch.full((2, 8), 99999), "does not run on the first batch"),
        (torch.ones(2, 1, dtype=torch.long), "one token a row"),
    ],
)
def test_what_the_model_cannot_read_is_one_sentence(given, said):
    with pytest.raises(InputError, match=said):
        diagnose(build("llama"), given)


def test_a_model_in_double_precision(usual):
    found = diagnose(build("llama").double(), [inputs("llama")], **QUICK)
    assert rows(found) == pytest.approx(rows(usual), rel=1e-4)
    assert found.how.dtype == "float64"


def test_frozen_parameters_have_gradients_and_stay_frozen(usual):
    model = build("llama").requires_grad_(False)
    found = diagnose(model, [inputs("llama")], **QUICK)
    assert [r.gradient_norm for r in found.layers] == pytest.approx([r.gradient_norm for r in usual.layers], rel=1e-4)
    assert not any(p.requires_grad for p in model.parameters())
    half = build("llama")
    half.model.layers[1].requires_grad_(False)
    found = diagnose(half, [inputs("llama")], **QUICK)
    assert [r.gradient_norm for r in found.layers] == pytest.approx([r.gradient_norm for r in usual.layers], rel=1e-4)


def test_a_compiled_model(usual):
    found = diagnose(torch.compile(build("llama"), backend="eager"), [inputs("llama")], **QUICK)
    assert rows(found) == pytest.approx(rows(usual), rel=1e-5)
    inside = build("llama")
    inside.compile(backend="eager")
    assert rows(diagnose(inside, [inputs("llama")], **QUICK)) == pytest.approx(rows(usual), rel=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dynamic_eight_bit_weights():
    model = torch.ao.quantization.quantize_dynamic(build("llama"), {torch.nn.Linear}, dtype=torch.qint8)
    found = diagnose(model, [inputs("llama")], **QUICK)
    assert len(found.layers) == 3
    assert any("gradients were left out" in note for note in found.notes)


def test_an_encoder_decoder_with_labels():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    ids = inputs("llama")["input_ids"]
    found = diagnose(model, [{"input_ids": ids, "labels": ids[:, :7].clone()}], **QUICK)
    assert found.loss.name.startswith("the model's own loss")
    assert len(found.layers) == 3


def test_an_encoder_decoder_without_anything_to_decode_is_told_what_it_lacks():
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    with pytest.raises(InputError, match="labels= or decoder_input_ids="):
        diagnose(transformers.T5ForConditionalGeneration(config), inputs("llama"))


# -- padding ------------------------------------------------------------------------------------------------------------
def padded(side):
    """Two texts of 12 and 20 tokens, and the same two one after the other without padding."""
    generator = torch.Generator().manual_seed(3)
    short, long = (torch.randint(5, 97, (1, n), generator=generator) for n in (12, 20))
    fill = torch.full((1, 8), 1)
    row = [short, fill] if side == "right" else [fill, short]
    ones, zeros = torch.ones(1, 12, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)
    mask = torch.cat([ones, zeros] if side == "right" else [zeros, ones], 1)
    batch = {
        "input_ids": torch.cat([torch.cat(row, 1), long]),
        "attention_mask": torch.cat([mask, torch.ones(1, 20, dtype=torch.long)]),
    }
    return batch, [{"input_ids": short}, {"input_ids": long}]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_padding_is_not_counted_in_the_loss(name):
    model = build(name)
    batch, alone = padded("right")
    loss = pick("causal", model, batch)
    with torch.no_grad():
        single = [float(loss(model, each)) for each in alone]
        assert float(loss(model, batch)) == pytest.approx((11 * single[0] + 19 * single[1]) / 30, rel=1e-5)


def test_padding_is_not_counted_in_the_stream_nor_in_attention():
    batch, alone = padded("right")
    together = diagnose(build("llama"), [batch], **QUICK)
    single = [diagnose(build("llama"), [each], **QUICK) for each in alone]
    assert together.how.tokens == 32
    for layer, row in enumerate(together.layers):
        one, two = (each.layers[layer] for each in single)
        assert row.norm == pytest.approx((12 * one.norm + 20 * two.norm) / 32, rel=1e-4)
        assert row.attention_ratio == pytest.approx(
            (12 * one.attention_ratio + 20 * two.attention_ratio) / 32, rel=1e-4
        )
        assert row.token_cosine == pytest.approx((one.token_cosine + two.token_cosine) / 2, abs=1e-5)
        assert row.entropy == pytest.approx((one.entropy + two.entropy) / 2, abs=1e-4)


def test_hidden_places_are_never_padding():
    model = build("bert")
    batch, _ = padded("right")
    loss = pick("masked", model, batch, mask_id=3)
    _, _, hidden = loss.targets(batch)
    assert not bool((hidden & (batch["attention_mask"] == 0)).any())
    twin = copy.deepcopy(batch)
    twin["input_ids"][0, 12:] = 50  # other padding, the same loss
    with torch.no_grad():
        assert float(loss(model, twin)) == pytest.approx(float(loss(model, batch)), rel=1e-5)


def test_a_model_without_parameters_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="no repeated layers"):
        diagnose(torch.nn.Identity(), [torch.rand(2, 8, 4)])
