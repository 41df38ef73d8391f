"""Diagnoses of structures that are more than a stack of equal layers, on the real classes."""

import pytest
import torch
import transformers

from normlab.probes.diagnose import diagnose
from normlab.probes.diagnosis import Diagnosis, table_csv
from tests.probes.zoo import GROUPED

TOKENS = torch.randint(5, 97, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def t5():
    torch.manual_seed(0)
    shape = {"vocab_size": 97, "d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 8, "d_ff": 48}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, initializer_factor=2.0)).eval()


def examined(model, **batch):
    return diagnose(model, [batch], skips=False, lengths=[16])


def test_both_halves_of_an_encoder_decoder_are_in_one_diagnosis(t5):
    found = examined(t5, input_ids=TOKENS, decoder_input_ids=TOKENS[:, :20], labels=TOKENS[:, :20].contiguous())
    assert [half.stack for half in found.stacks] == ["encoder", "decoder"]
    assert [len(half.layers) for half in found.stacks] == [3, 3]
    assert [branch.kind for branch in found.layers[0].branches] == ["attention", "ffn", "cross_attention"]
    assert all(row.entropy is not None for half in found.stacks for row in half.layers)
    again = Diagnosis.from_dict(found.to_dict())
    assert again.more[0].layers == found.more[0].layers
    assert (
        table_csv([found]).splitlines()[0].endswith("cross_attention_norm,cross_attention_ratio,cross_attention_cosine")
    )


def test_a_dead_cross_attention_is_not_hidden_in_an_average(t5):
    saved = t5.decoder.block[1].layer[1].EncDecAttention.o.weight.detach().clone()
    torch.nn.init.zeros_(t5.decoder.block[1].layer[1].EncDecAttention.o.weight)
    try:
        found = examined(t5, input_ids=TOKENS, decoder_input_ids=TOKENS[:, :20])
    finally:
        t5.decoder.block[1].layer[1].EncDecAttention.o.weight.data.copy_(saved)
    verdict = found.verdict("dead_branches")
    assert verdict is not None
    assert "cross-attention of layer 1" in verdict.title
    assert verdict.title.startswith("in the decoder, ")
    assert found.layers[1].branch("attention").ratio > 0
    assert found.layers[1].branch("cross_attention").ratio == 0


def test_a_mixer_without_attention_is_named_and_the_reason_given():
    torch.manual_seed(0)
    config = transformers.JambaConfig(
        **GROUPED, num_experts=2, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False, mamba_d_state=4
    )
    found = examined(transformers.JambaForCausalLM(config).eval(), input_ids=TOKENS)
    assert [row.mixer for row in found.layers] == [
        "state space (JambaMambaMixer)",
        None,
        "state space (JambaMambaMixer)",
    ]
    assert [row.entropy is None for row in found.layers] == [True, False, True]
    note = "attention was not measured in layers 0 and 2: state space (JambaMambaMixer) has no attention weights"
    assert note in found.notes
