import pytest
import transformers

from normlab.dynamics.networks.bridge import bridge, random_tokens

TOKENS = random_tokens(64, batch=2, length=24)


SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}


HUGGING_FACE = {
    "gpt2": ("pre_norm", True, {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64}),
    "llama": ("pre_norm", True, SHAPE),
    "bert": ("post_norm", False, SHAPE),
}


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_hugging_face_models_by_hooks(kind):
    name, causal, sizes = HUGGING_FACE[kind]
    special = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.AutoConfig.for_model(kind, vocab_size=64, **sizes, **special)
    model = transformers.AutoModel.from_config(config)
    found = bridge(model, TOKENS, scheme=name, causal=causal)
    assert len(found.measured) == 5
    assert found.kernel_error < 0.08
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
