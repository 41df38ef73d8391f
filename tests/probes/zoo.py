"""Small models with random weights: every architecture of the table, and some that no table knows."""

import torch
from torch import nn

SMALL = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
INNER = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 64}
GROUPED = {**INNER, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}


def _hf(config: str, model: str, **options):
    import transformers

    # 0.2 instead of 0.02: branches that matter, so that a wrong identity cannot hide behind the stream.
    options = {"initializer_range": 0.2, **options} if config != "T5Config" else options
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**options))


ARCHITECTURES = {
    "bert": ("post_norm", _hf("BertConfig", "BertForMaskedLM", **INNER)),
    "roberta": ("post_norm", _hf("RobertaConfig", "RobertaForMaskedLM", **INNER)),
    "distilbert": (
        "post_norm",
        _hf(
            "DistilBertConfig",
            "DistilBertForMaskedLM",
            vocab_size=97,
            dim=32,
            n_layers=3,
            n_heads=4,
            hidden_dim=48,
            max_position_embeddings=64,
        ),
    ),
    "albert": ("post_norm", _hf("AlbertConfig", "AlbertForMaskedLM", **INNER, embedding_size=16)),
    "gpt2": (
        "pre_norm",
        _hf("GPT2Config", "GPT2LMHeadModel", vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64),
    ),
    "gpt_neox": (
        "pre_norm, parallel branches",
        _hf("GPTNeoXConfig", "GPTNeoXForCausalLM", **INNER, use_parallel_residual=True),
    ),
    "gpt_neox_sequential": (
        "pre_norm",
        _hf("GPTNeoXConfig", "GPTNeoXForCausalLM", **INNER, use_parallel_residual=False),
    ),
    "opt": (
        "pre_norm",
        _hf("OPTConfig", "OPTForCausalLM", **SMALL, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32),
    ),
    "opt_350m": (
        "post_norm",
        _hf(
            "OPTConfig",
            "OPTForCausalLM",
            **SMALL,
            ffn_dim=48,
            max_position_embeddings=64,
            word_embed_proj_dim=16,
            do_layer_norm_before=False,
        ),
    ),
    "llama": ("pre_norm", _hf("LlamaConfig", "LlamaForCausalLM", **GROUPED)),
    "mistral": ("pre_norm", _hf("MistralConfig", "MistralForCausalLM", **GROUPED, sliding_window=8)),
    "qwen2": ("pre_norm", _hf("Qwen2Config", "Qwen2ForCausalLM", **GROUPED)),
    "qwen3": ("pre_norm", _hf("Qwen3Config", "Qwen3ForCausalLM", **GROUPED)),
    "gemma2": ("peri_norm", _hf("Gemma2Config", "Gemma2ForCausalLM", **GROUPED, sliding_window=8)),
    "gemma3": ("peri_norm", _hf("Gemma3TextConfig", "Gemma3ForCausalLM", **GROUPED, sliding_window=8)),
    "olmo": ("pre_norm", _hf("OlmoConfig", "OlmoForCausalLM", **GROUPED)),
    "olmo2": ("res_norm", _hf("Olmo2Config", "Olmo2ForCausalLM", **GROUPED)),
    "phi": ("pre_norm, parallel branches", _hf("PhiConfig", "PhiForCausalLM", **INNER)),
    "falcon": (
        "pre_norm, parallel branches",
        _hf("FalconConfig", "FalconForCausalLM", **SMALL, new_decoder_architecture=True, num_kv_heads=2),
    ),
    "falcon_7b": (
        "pre_norm, parallel branches",
        _hf("FalconConfig", "FalconForCausalLM", **SMALL, new_decoder_architecture=False, multi_query=True),
    ),
    "falcon_rw": (
        "pre_norm",
        _hf("FalconConfig", "FalconForCausalLM", **SMALL, parallel_attn=False, alibi=True),
    ),
    "bloom": ("pre_norm", _hf("BloomConfig", "BloomForCausalLM", vocab_size=97, hidden_size=32, n_layer=3, n_head=4)),
    "bloom_carried": (
        "carried_norm",
        _hf(
            "BloomConfig",
            "BloomForCausalLM",
            vocab_size=97,
            hidden_size=32,
            n_layer=3,
            n_head=4,
            apply_residual_connection_post_layernorm=True,
        ),
    ),
    "t5_encoder": (
        "pre_norm",
        _hf("T5Config", "T5EncoderModel", vocab_size=97, d_model=32, num_layers=3, num_heads=4, d_kv=8, d_ff=48),
    ),
    "vit": (
        "pre_norm",
        _hf("ViTConfig", "ViTModel", hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
            image_size=16, patch_size=4),
    ),
}  # fmt: skip


class Encoder(nn.Module):
    """torch.nn.TransformerEncoder with an embedding in front."""

    def __init__(self, *, norm_first: bool, batch_first: bool = True, depth: int = 3) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(97, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, norm_first=norm_first, batch_first=batch_first, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(32, 97)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.head(x if self.batch_first else x.transpose(0, 1))


class Homemade(nn.Module):
    """A model that no table knows; `layout` is how its layers join the stream."""

    def __init__(self, layout: str, depth: int = 3, d: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, d)
        self.blocks = nn.ModuleList(HomemadeBlock(layout, d) for _ in range(depth))
        self.head = nn.Linear(d, 97)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class HomemadeBlock(nn.Module):
    def __init__(self, layout: str, d: int) -> None:
        super().__init__()
        self.layout = layout
        self.mixer = MixingAttention(d)
        self.wide = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.first, self.second = nn.RMSNorm(d), nn.LayerNorm(d)
        self.third, self.fourth = nn.RMSNorm(d), nn.RMSNorm(d)

    def forward(self, x):
        if self.layout == "pre":
            x = x + self.mixer(self.first(x))
            return x + self.wide(self.second(x))
        if self.layout == "post":
            x = self.first(x + self.mixer(x))
            return self.second(x + self.wide(x))
        if self.layout == "peri":
            x = x + self.third(self.mixer(self.first(x)))
            return x + self.fourth(self.wide(self.second(x)))
        if self.layout == "res":
            x = x + self.third(self.mixer(x))
            return x + self.fourth(self.wide(x))
        if self.layout == "parallel":
            return x + self.mixer(self.first(x)) + self.wide(self.second(x))
        return 0.7 * x + self.mixer(self.first(x)) * 1.3  # "scaled": no module returns what is added


class MixingAttention(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def inputs(name: str, *, batch: int = 2, tokens: int = 12, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    return {"input_ids": torch.randint(5, 97, (batch, tokens), generator=generator)}


def build(name: str, seed: int = 0):
    torch.manual_seed(seed)
    return ARCHITECTURES[name][1]().eval()
