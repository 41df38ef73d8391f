"""Parameters and FLOPs, against counting them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import normlab

SHAPES: dict[str, dict[str, Any]] = {
    "swiglu": {},
    "gelu": {"ffn": "gelu", "bias": True, "positions": "learned"},
    "attention only": {"ffn": "none"},
    "grouped": {"kv_heads": 2, "head_dim": 16},
    "untied": {"tie_embeddings": False, "norm": "layernorm"},
}


def build(**options: Any) -> normlab.Transformer:
    base = {"vocab_size": 53, "dim": 48, "depth": 3, "heads": 4, "max_length": 32}
    return normlab.Transformer(normlab.TransformerConfig(**(base | options)))


def counted(model: normlab.Transformer, tokens: torch.Tensor, *, training: bool) -> int:
    """By torch's counter, through the attention that is written as matrix products (the fused ones recompute)."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(tokens)
        if training:
            F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_flops(shape: str, training: bool, causal: bool) -> None:
    model, (batch, time) = build(causal=causal, **SHAPES[shape]), (2, 13)
    given = torch.randint(0, 53, (batch, time))
    with torch.set_grad_enabled(training):
        full = counted(model, given, training=training)
    if causal:  # torch's counter has every query look at every key; ours at those before it
        unseen = time - (time + 1) / 2
        per_query = 2 * 2 * model.config.depth * model.config.heads * model.config.size_of_head
        full -= round(batch * time * unseen * per_query * (3 if training else 1))
    assert model.flops_per_token(time, training=training) * batch * time == full


@pytest.mark.parametrize("shape", SHAPES)
def test_num_parameters(shape: str) -> None:
    model = build(**SHAPES[shape])
    unique = {p.data_ptr(): p.numel() for p in model.state_dict().values()}
    assert model.num_parameters() == sum(unique.values())
    tables = 53 * 48 * (2 if shape == "untied" else 1) + (32 * 48 if shape == "gelu" else 0)
    assert model.num_parameters(embeddings=False) == sum(unique.values()) - tables


def test_num_parameters_by_hand() -> None:
    """Three layers: q, k, v, out; gate, up, down of 8 round(48 / 3) = 128 units; two norms; the final norm."""
    layer = 4 * 48 * 48 + 3 * 48 * 128 + 2 * 48
    assert build().num_parameters(embeddings=False) == 3 * layer + 48
