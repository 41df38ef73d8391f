"""Every recipe against the model of transformers that ships it: embedding scale, norm on q and k, initialisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from normlab.model import Transformer, TransformerConfig
from normlab.schemes import SCHEMES, scheme
from normlab.schemes.recipes import RECIPES, Recipe, recipe
from tests.conformance.decoders import DEPTH, PLAIN, VOCAB, gemma3n, hy_v4, qwen4_exp, zaya

pytest.importorskip("transformers")
HEADS, HEAD_DIM, DIM = 2, 16, 32


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(vocab_size=4096, n_embd=DIM, n_layer=DEPTH, n_head=HEADS))


def marian() -> nn.Module:
    from transformers import MarianConfig, MarianModel

    sizes: dict[str, Any] = {"d_model": DIM, "encoder_layers": 1, "decoder_layers": 1, "scale_embedding": True}
    heads = {
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8,
    }
    return MarianModel(MarianConfig(vocab_size=4096, pad_token_id=0, **sizes, **heads)).encoder


def gemma2() -> nn.Module:
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(
        Gemma2Config(**{**PLAIN, "vocab_size": 4096}, num_key_value_heads=1, head_dim=HEAD_DIM, intermediate_size=8)
    )


def olmo2() -> nn.Module:
    from transformers import Olmo2Config, Olmo2Model

    return Olmo2Model(Olmo2Config(**{**PLAIN, "vocab_size": 4096}, num_key_value_heads=HEADS, intermediate_size=8))


def nanochat() -> nn.Module:
    from transformers import NanoChatConfig, NanoChatModel

    return NanoChatModel(NanoChatConfig(**PLAIN, num_key_value_heads=HEADS, head_dim=HEAD_DIM, intermediate_size=8))


SHIPPED = {f.__name__: f for f in (gpt2, marian, gemma2, olmo2, nanochat, gemma3n, hy_v4, qwen4_exp, zaya)}
NAMED = [name for name, row in RECIPES.items() if row.shipped is not None]


def table_of(model: nn.Module) -> nn.Embedding:
    found = model.get_input_embeddings()
    assert isinstance(found, nn.Embedding)
    return found


def scale_of(model: nn.Module) -> float:
    """What the first layer gets of a token, over its row in the table."""
    table, seen = table_of(model), []
    tokens = torch.arange(1, 6)[None]
    if hasattr(model, "embed_scale"):  # multiplied outside of the table
        return float(model.embed_scale)
    handle = table.register_forward_hook(lambda _m, _i, out: seen.append(out))
    try:
        table(tokens)
    finally:
        handle.remove()
    rows = table.weight[tokens[0]]
    return float((seen[0][0] / rows).detach().mean())


def qk_norm_of(model: nn.Module) -> str:
    """none, head or full, by what the norm of queries is told to norm."""
    for _, module in model.named_modules():
        norm = getattr(module, "q_norm", None)
        if isinstance(norm, nn.Module):
            weight = getattr(norm, "weight", None)
            if weight is None:  # without a gain: look at what it does
                x = torch.randn(1, 4, HEADS, HEAD_DIM)
                return (
                    "head" if torch.allclose(norm(x).square().mean(-1), torch.ones(1, 4, HEADS), atol=1e-3) else "full"
                )
            heads = module.config.num_attention_heads
            per_head = getattr(module, "head_dim", None) or module.config.hidden_size // heads
            return "head" if weight.numel() == per_head else "full"
    return "none"


@pytest.mark.parametrize("name", NAMED)
def test_as_it_ships(name: str) -> None:
    row = recipe(name)
    model = SHIPPED[row.shipped or ""]()
    kind = type(model.config)
    if row.init_std is not None:
        assert kind().initializer_range == row.init_std
    if row.width is not None:
        assert kind().hidden_size == row.width
    if row.embedding is not None:
        width = model.config.hidden_size
        assert scale_of(model) == pytest.approx(width**0.5 if row.embedding == "sqrt_width" else 1.0, rel=1e-3)
    if row.qk_norm is not None:
        assert qk_norm_of(model) == row.qk_norm


@pytest.mark.parametrize("name", ["pre_norm", "peri_norm", "res_norm"])
def test_the_embedding_has_the_size_that_ships(name: str) -> None:
    """Standard deviation as drawn, times the scale, at the shipped width: what our model has at any width."""
    row = recipe(name)
    model = SHIPPED[row.shipped or ""]()
    drawn = float(table_of(model).weight.detach().std())
    assert drawn == pytest.approx(row.init_std, rel=0.02)
    shipped = drawn * ((row.width or 1) ** 0.5 if row.embedding == "sqrt_width" else 1.0)
    for dim in (32, 128):
        ours = Transformer(settings(row, name, dim))
        x = ours.embed(torch.arange(VOCAB)[None], torch.arange(VOCAB))
        assert float(x.detach().square().mean().sqrt()) == pytest.approx(shipped, rel=0.1)


def settings(row: Recipe, name: str, dim: int) -> TransformerConfig:
    own = row.model_settings(dim, qk_norm=scheme(name).demands().qk_norm is None)
    return TransformerConfig.from_dict(
        {"vocab_size": VOCAB, "dim": dim, "depth": 2, "heads": 2, "scheme": {"name": name}, **own}
    )


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_every_scheme_can_be_built_with_its_recipe(name: str) -> None:
    row = recipe(name)
    model = Transformer(settings(row, name, 32))
    wanted = row.qk_norm if scheme(name).demands().qk_norm is None and row.qk_norm != "none" else None
    if wanted is not None:
        assert all(branch.qk_norm == wanted for branch in model.branches[::2])
    words = row.words()
    assert set(words) == {"embedding", "q-k norm", "initialisation", "weight decay", "optimizer", "source"}
    if name not in RECIPES:
        assert set(words.values()) == {"not known"}
