"""What a user brings who has no Hugging Face model: a class of his own, odd inputs, and faults in it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normlab as nl
from normlab.errors import InputError, UnsupportedError
from tests.probes.zoo import build

WIDTH, PLACES = 32, 48


class Attention(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.inward, self.out, self.causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), causal

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.inward(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention(causal)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.ffn(self.norms[1](x))


class Gated(Block):
    def __init__(self, lerp):
        super().__init__()
        self.gate, self.lerp = nn.Linear(WIDTH, WIDTH), lerp

    def forward(self, x):
        for norm, branch in zip(self.norms, (self.attention, self.ffn), strict=True):
            gate, y = torch.sigmoid(self.gate(x)), branch(norm(x))
            x = torch.lerp(x, y, gate) if self.lerp else (1 - gate) * x + gate * y
        return x


class Plain(nn.Module):
    def __init__(self, blocks, whole=True):
        super().__init__()
        self.embed, self.place = nn.Embedding(64, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks, self.whole = nn.ModuleList(blocks), whole
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            if self.whole:
                x = block(x)
            else:
                x = x + block.attention(block.norms[0](x))
                x = x + block.ffn(block.norms[1](x))
        return self.head(self.norm(x))


def model_of(*blocks, **options):
    torch.manual_seed(0)
    return Plain([make() for make in blocks], **options)


def text(length=PLACES):
    """Every token is the one before it plus one, with some noise: something to learn."""
    generator = torch.Generator().manual_seed(0)
    steps = 1 + (torch.rand(8, length, generator=generator) < 0.1).long()
    return steps.cumsum(1) % 64


@pytest.fixture(scope="module")
def learnt():
    model = model_of(*[Block] * 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        ids = text()
        F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_class_of_ones_own_is_judged_by_the_next_token_and_says_so(learnt):
    found = nl.diagnose(learnt, [text()])
    assert found.loss.name == "causal"
    assert found.loss.value < 0.7 * found.loss.chance
    assert any("taken for a causal language model" in note for note in found.notes)


def test_lengths_that_do_not_run_are_left_out_with_the_reason(learnt):
    found = nl.diagnose(learnt, [text()] * 4)  # enough text for 1024 tokens, and a table of 48 places
    assert any("attention was not measured at 64 tokens and more" in note for note in found.notes)


def test_a_mask_that_is_missing_in_one_layer_is_seen(learnt):
    learnt.blocks[2].attention.causal = False
    try:
        found = nl.diagnose(learnt, [text()])
    finally:
        learnt.blocks[2].attention.causal = True
    assert found.verdict("sees_the_future").layers == (2,)


def test_one_that_fills_in_tokens_is_not_taken_for_causal():
    class Tells(Plain):
        def forward(self, ids):
            return super().forward(ids) + 20 * F.one_hot(ids, 64)

    torch.manual_seed(0)
    found = nl.diagnose(Tells([Block(causal=False) for _ in range(2)]), [text()])
    assert found.loss is None
    assert any('pass loss="causal"' in note for note in found.notes)


@pytest.mark.parametrize("lerp", [False, True])
def test_a_gate_that_is_computed_from_data_is_named(lerp):
    with pytest.raises(UnsupportedError, match="times a gate that is computed from data"):
        nl.diagnose(model_of(*[lambda: Gated(lerp)] * 3), [text()])


def test_blocks_that_are_never_called_as_a_whole_are_named():
    with pytest.raises(UnsupportedError, match=r"Block \(at 'blocks.0'\) is never called as a whole"):
        nl.diagnose(model_of(*[Block] * 3, whole=False), [text()])


def test_inference_mode(learnt):
    with torch.inference_mode():
        assert nl.diagnose(learnt, [text()]).loss.name == "causal"
        with pytest.raises(InputError, match="made inside of torch"):
            nl.diagnose(model_of(*[Block] * 3), [text()])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamic_quantisation_shares_scales_in_a_batch_by_design():
    model = build("llama").eval()
    count = sum(parameter.numel() for parameter in model.parameters())
    packed = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    found = nl.diagnose(packed, [torch.randint(0, 97, (4, 32), generator=torch.Generator().manual_seed(0))])
    assert found.verdict("batch_leaks") is None
    assert any("one scale for the whole batch" in note for note in found.notes)
    assert found.how.parameters == count


def test_labels_that_do_not_lie_in_one_piece():
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=64, **shape)).eval()
    found = nl.diagnose(model, {"input_ids": text(), "labels": text()[:, :20]})
    assert {half.stack for half in found.stacks} == {"encoder", "decoder"}
