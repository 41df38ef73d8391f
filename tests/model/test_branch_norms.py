"""What schemes ask of attention, FFN and head (nGPT, sub-LN, HybridNorm), and DyT, against formulas written out."""

import math

import pytest
import torch
import torch.nn.functional as F

import normlab as nl
from normlab.model.attention import Pass
from normlab.schemes.norms import make_norm

X = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def model_of(scheme, **changes):
    shape = {"vocab_size": 13, "dim": 12, "depth": 1, "heads": 3, "positions": "nope"}
    model = nl.Transformer(nl.TransformerConfig(**{**shape, "scheme": scheme, **changes})).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "scale" in name:  # gains and scales away from one
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    return model


def unit(x, dim=-1):
    return x / x.norm(dim=dim, keepdim=True)


def rms(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def heads_of(x, weight):
    return (x @ weight.T).unflatten(-1, (3, 4)).transpose(1, 2)


def attend(q, k, v, scale):
    logits = scale * q @ k.transpose(-1, -2)
    logits = logits.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    return (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_ngpt_attention():
    """q, k on the sphere times one learned scale s_qk (stored at 1/sqrt(d_model)); softmax scale sqrt(d_head)."""
    attention = model_of("ngpt").branches[0]
    w = attention.matrices()
    scale = (attention.qk_scale * math.sqrt(12))[:, None]
    q, k = (unit(heads_of(X, w[role])) * scale for role in ("query", "key"))
    expected = attend(q, k, heads_of(X, w["value"]), math.sqrt(4)) @ w["out"].T
    torch.testing.assert_close(attention(X, Pass()), expected)


def test_ngpt_logits():
    model = model_of("ngpt")
    expected = (X @ model.embedding.weight.T) * model.logit_scale * math.sqrt(12)
    torch.testing.assert_close(model.logits(X), expected)
    fresh = nl.Transformer(model.config)
    torch.testing.assert_close(fresh.logit_scale, torch.full((13,), 12**-0.5))
    torch.testing.assert_close(fresh.branches[0].qk_scale, torch.full((3, 4), 12**-0.5))


def test_ngpt_with_grouped_queries_shares_the_scale_of_a_group():
    attention = model_of("ngpt", kv_heads=1).branches[0]
    assert attention.qk_scale.shape == (1, 4)
    assert attention(X, Pass()).shape == X.shape


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_sub_norm_stands_before_the_output_projection(norm):
    model = model_of("sub_norm", norm=norm)
    attention, ffn = model.branches
    w = attention.matrices()
    inner = attend(*(heads_of(X, w[role]) for role in ("query", "key", "value")), 4**-0.5)
    torch.testing.assert_close(attention(X, Pass()), attention.inner_norm(inner) @ w["out"].T)
    w = ffn.matrices()
    inner = F.silu(X @ w["gate"].T) * (X @ w["up"].T)
    torch.testing.assert_close(ffn(X), ffn.inner_norm(inner) @ w["down"].T)


def test_hybrid_norm_norms_each_heads_q_k_v():
    attention = model_of("hybrid_norm").branches[0]
    w = attention.matrices()
    q = rms(heads_of(X, w["query"]), attention.query_norm.weight)
    k = rms(heads_of(X, w["key"]), attention.key_norm.weight)
    v = rms(heads_of(X, w["value"]), attention.value_norm.weight)
    torch.testing.assert_close(attention(X, Pass()), attend(q, k, v, 4**-0.5) @ w["out"].T)


def test_dynamic_tanh():
    norm = make_norm("dyt", 12, eps=1e-6).double()
    torch.testing.assert_close(norm(X), torch.tanh(0.5 * X))
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    torch.testing.assert_close(norm(X), norm.weight * torch.tanh(norm.alpha * X) + norm.bias)


def test_unit_is_exact_in_low_precision():
    from normlab.schemes.norms import unit as ours

    for dtype, tolerance in ((torch.bfloat16, 4e-3), (torch.float16, 1e-3)):
        small = (torch.randn(4, 64) * 5e-4).to(dtype)
        assert (ours(small).double().norm(dim=-1) - 1).abs().max() < tolerance


@pytest.mark.parametrize(("scheme", "changes", "words"), [
    ("hybrid_norm", {"qk_norm": "full"}, "has its own norm on queries and keys"),
    ("ngpt", {"qk_norm": "head"}, "has its own norm on queries and keys"),
    ("ngpt", {"bias": True}, "no biases"),
])  # fmt: skip
def test_settings_that_a_scheme_overrules_are_refused(scheme, changes, words):
    with pytest.raises(nl.ConfigError, match=words):
        model_of(scheme, **changes)
