"""Pairs of models with the same weights: one of another library, one of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import normlab
from tests.conformance import copying

VOCAB, DIM, HEADS, KV_HEADS, HIDDEN, POSITIONS = 61, 48, 4, 2, 80, 40


@dataclass
class Twins:
    theirs: nn.Module
    ours: normlab.Transformer
    translate: copying.Translation
    run_theirs: Callable[[Tensor, Tensor | None], Tensor]  # tokens, padding mask -> features or logits
    run_ours: Callable[[Tensor, Tensor | None], Tensor]

    @property
    def depth(self) -> int:
        return self.ours.config.depth


def randomise_(model: nn.Module, seed: int) -> None:
    """Weights that hide nothing: no gain is 1, no bias 0, no two norms alike, and every branch matters."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # products keep the size of what they act on
                parameter.normal_(0.0, DIM**-0.5, generator=draw)
            else:
                parameter.uniform_(-0.5, 0.5, generator=draw)
        for name, module in model.named_modules():
            gain = getattr(module, "weight", None)
            if isinstance(gain, Tensor) and gain.dim() == 1 and "Gemma" not in type(module).__name__:
                assert "norm" in type(module).__name__.lower(), name
                gain.add_(1.0)


def pair(theirs: nn.Module, translate: copying.Translation, *, seed: int, features: bool, **options: Any) -> Twins:
    """Our twin of `theirs`; `features` compares what the head sees (models without a head), else the logits."""
    sizes = {"vocab_size": VOCAB, "dim": DIM, "heads": HEADS, "ffn_dim": HIDDEN, "max_length": POSITIONS}
    options = {**sizes, "embedding_scale": 1.0, **options}
    ours = normlab.Transformer(normlab.TransformerConfig(**options))
    theirs.train()  # torch.nn leaves its fused inference path; every dropout is 0
    randomise_(theirs, seed)
    copying.copy_weights(translate, theirs, ours, depth=options["depth"])

    def run_ours(tokens: Tensor, mask: Tensor | None) -> Tensor:
        return (ours.features if features else ours)(tokens, attention_mask=mask)

    def run_theirs(tokens: Tensor, mask: Tensor | None) -> Tensor:
        if isinstance(theirs, Encoder):
            return theirs(tokens, mask)
        output = theirs(tokens, attention_mask=None if mask is None else mask.long(), use_cache=False)
        return output.last_hidden_state if features else output.logits

    return Twins(theirs, ours, translate, run_theirs, run_ours)


# -- torch.nn -------------------------------------------------------------------------------------------------------
class Encoder(nn.Module):
    """nn.TransformerEncoder behind an embedding, so that it takes tokens as every other model here."""

    def __init__(self, *, depth: int, pre: bool, activation: str, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, HIDDEN, dropout=0.0, activation=activation, batch_first=True, norm_first=pre
        )
        self.causal = causal
        self.embedding = nn.Embedding(VOCAB, DIM)
        # Nested tensors are the fused inference path's; the layer itself takes that path in eval mode.
        final = nn.LayerNorm(DIM) if pre else None
        self.encoder = nn.TransformerEncoder(layer, depth, norm=final, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        time = tokens.shape[1]
        future = torch.ones(time, time, dtype=torch.bool).triu(1) if self.causal else None
        return self.encoder(self.embedding(tokens), mask=future, src_key_padding_mask=None if mask is None else ~mask)


def torch_encoder(*, pre: bool, activation: str, causal: bool = False, seed: int = 0) -> Twins:
    return pair(
        Encoder(depth=4, pre=pre, activation=activation, causal=causal),
        partial(copying.from_torch_encoder, pre=pre),
        seed=seed,
        features=True,
        depth=4,
        scheme="pre_norm" if pre else "post_norm",
        norm="layernorm",
        eps=1e-5,
        bias=True,
        ffn=activation,
        positions="nope",
        causal=causal,
    )


# -- Hugging Face ---------------------------------------------------------------------------------------------------
LLAMA_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def bert(seed: int = 0) -> Twins:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=POSITIONS,
        pad_token_id=None,
    )
    return pair(
        BertModel(config, add_pooling_layer=False),
        copying.from_bert,
        seed=seed,
        features=True,
        depth=3,
        scheme={"name": "post_norm", "embedding_norm": True},
        norm="layernorm",
        eps=1e-12,
        bias=True,
        ffn="gelu",
        positions="learned",
        causal=False,
    )


def gpt2(seed: int = 0) -> Twins:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=POSITIONS,
        n_embd=DIM,
        n_layer=4,
        n_head=HEADS,
        n_inner=HIDDEN,
        activation_function="gelu_new",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return pair(
        GPT2LMHeadModel(config),
        copying.from_gpt2,
        seed=seed,
        features=False,
        depth=4,
        scheme="pre_norm",
        norm="layernorm",
        eps=1e-5,
        bias=True,
        ffn="gelu_tanh",
        positions="learned",
    )


def llama(seed: int = 0) -> Twins:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "default", "rope_theta": 500.0}
    config = LlamaConfig(**LLAMA_SHAPE, num_hidden_layers=4, rms_norm_eps=1e-5, rope_parameters=rope)
    return pair(
        LlamaForCausalLM(config),
        copying.from_llama,
        seed=seed,
        features=False,
        depth=4,
        scheme="pre_norm",
        eps=1e-5,
        rope_theta=500.0,
        kv_heads=KV_HEADS,
        tie_embeddings=False,
    )


def olmo2(seed: int = 0) -> Twins:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    rope = {"rope_type": "default", "rope_theta": 500.0}
    config = Olmo2Config(**LLAMA_SHAPE, num_hidden_layers=4, rms_norm_eps=1e-5, rope_parameters=rope)
    return pair(
        Olmo2ForCausalLM(config),
        copying.from_olmo2,
        seed=seed,
        features=False,
        depth=4,
        scheme="res_norm",
        qk_norm="full",
        eps=1e-5,
        rope_theta=500.0,
        kv_heads=KV_HEADS,
        tie_embeddings=False,
    )


def gemma2(seed: int = 0, *, sliding_window: int = POSITIONS) -> Twins:
    """Head size and logit scale are Gemma's own: neither dim / heads nor 1/sqrt(head_dim)."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        **LLAMA_SHAPE,
        num_hidden_layers=4,
        head_dim=16,
        query_pre_attn_scalar=20,
        hidden_activation="gelu_pytorch_tanh",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        sliding_window=sliding_window,
    )
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    return pair(
        Gemma2ForCausalLM(config),
        copying.from_gemma2,
        seed=seed,
        features=False,
        depth=4,
        scheme="peri_norm",
        eps=1e-6,
        ffn="geglu",
        head_dim=16,
        attention_scale=20**-0.5,
        embedding_scale=DIM**0.5,
        rope_theta=500.0,
        kv_heads=KV_HEADS,
    )
