"""Attention options against plain formulas."""

import math

import pytest
import torch

import normlab as nl
from normlab.model.attention import ADAPTIVE_POLYNOMIAL, Pass, sparsemax, top_k_weights
from normlab.model.positions import rope_table, rotate, sinusoidal


def attention(**changes):
    shape = {"vocab_size": 11, "dim": 12, "depth": 2, "heads": 4, "positions": "nope"}
    config = nl.TransformerConfig(**{**shape, **changes})
    return nl.Transformer(config).double().eval().branches[0]


def by_hand(module, x, *, causal=True, temperature=None, allowed=None):
    """softmax over the visible keys, head by head and query by query."""
    q, k, v = (x @ module.matrices()[role].double().T for role in ("query", "key", "value"))
    d, group = module.head_dim, module.heads // module.kv_heads
    result = torch.zeros(*x.shape[:2], module.heads * d, dtype=x.dtype)
    for b in range(x.shape[0]):
        for head in range(module.heads):
            own, shared = slice(head * d, (head + 1) * d), slice(head // group * d, (head // group + 1) * d)
            for t in range(x.shape[1]):
                seen = [s for s in range(t + 1 if causal else x.shape[1]) if allowed is None or allowed[b, s]]
                logits = (k[b, seen][:, shared] @ q[b, t, own]) / math.sqrt(d)
                if temperature is not None:
                    logits = logits * temperature(logits, len(seen), head)
                result[b, t, own] = logits.softmax(0) @ v[b, seen][:, shared]
    return result @ module.matrices()["out"].double().T


X = torch.randn(2, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 20


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_grouped_queries(kv_heads, causal):
    module = attention(kv_heads=kv_heads, causal=causal)
    torch.testing.assert_close(module(X, Pass()), by_hand(module, X, causal=causal))


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_not_seen(causal):
    module = attention(causal=causal)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
    got = module(X, Pass(padding=mask))
    torch.testing.assert_close(got[mask], by_hand(module, X, causal=causal, allowed=mask)[mask])


@pytest.mark.parametrize("causal", [True, False])
def test_ssmax_multiplies_by_s_log_n(causal):
    module = attention(softmax="ssmax", causal=causal)
    with torch.no_grad():
        module.sharpness.copy_(torch.tensor([0.5, 1.0, 1.5, 2.0]))
    expected = by_hand(module, X, causal=causal, temperature=lambda z, n, h: module.sharpness[h] * math.log(n))
    torch.testing.assert_close(module(X, Pass()), expected)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_adaptive_temperature(kv_heads):
    module = attention(softmax="adaptive", kv_heads=kv_heads, start="authors")
    used = []

    def temperature(logits, n, head):
        p = logits.softmax(0)
        entropy = -(p * p.clamp_min(1e-300).log()).sum().item()
        value = sum(c * entropy ** (4 - i) for i, c in enumerate(ADAPTIVE_POLYNOMIAL))
        used.append(max(value, 1.0) if entropy > 0.5 else 1.0)
        return used[-1]

    torch.testing.assert_close(module(X, Pass()), by_hand(module, X, temperature=temperature))
    assert max(used) > 1.2, "the case should leave the plain softmax"


def test_head_norm_and_qk_norms():
    module = attention(head_norm=True)
    plain = attention()
    plain.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        plain.out.weight.copy_(torch.eye(12))
    heads = plain(X, Pass()).unflatten(-1, (4, 3))
    normed = heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(module(X, Pass()), normed.flatten(-2) @ module.out.weight.T)
    for kind, size in (("head", 3), ("full", 12)):
        assert attention(qk_norm=kind).query_norm.weight.shape == (size,)


def test_value_residual_averages_with_the_first_layer():
    config = nl.TransformerConfig(vocab_size=11, dim=12, depth=2, heads=4, positions="nope", value_residual=True)
    model = nl.Transformer(config).double()
    shared = Pass()
    first = model.branches[0](X, shared)
    torch.testing.assert_close(first, by_hand(model.branches[0], X))
    with torch.no_grad():
        twin = attention()
        value = twin.matrices()["value"]
        twin.load_state_dict(model.branches[2].state_dict())
        value.copy_(0.5 * (model.branches[0].matrices()["value"] + model.branches[2].matrices()["value"]))
    torch.testing.assert_close(model.branches[2](X, shared), by_hand(twin, X))


def test_rope_is_a_rotation_that_depends_on_distance_only():
    q, k = torch.randn(2, 1, 1, 2, 8)
    cos, sin = rope_table(torch.arange(50), 8, 10000.0)

    def at(x, position):
        return rotate(x, (cos[position : position + 1], sin[position : position + 1]))

    torch.testing.assert_close(at(q, 7).norm(dim=-1), q.norm(dim=-1))
    near, far = (at(q, 3) * at(k, 1)).sum(-1), (at(q, 42) * at(k, 40)).sum(-1)
    torch.testing.assert_close(near, far, rtol=0, atol=1e-5)
    torch.testing.assert_close(at(q, 0), q)


def test_sinusoidal_positions():
    table = sinusoidal(torch.arange(5), 7)
    assert table.shape == (5, 7)
    assert table[3, 2] == pytest.approx(math.sin(3 / 10000 ** (2 / 7)), abs=1e-6)
    assert table[3, 3] == pytest.approx(math.cos(3 / 10000 ** (2 / 7)), abs=1e-6)


def test_dropout_acts_in_training_only():
    config = nl.TransformerConfig(vocab_size=11, dim=16, depth=2, heads=4, dropout=0.5)
    model = nl.Transformer(config)
    tokens = torch.randint(0, 11, (2, 5))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    """By its definition: non-negative, sums to 1, and no other point of the simplex is nearer."""
    logits = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = sparsemax(logits)
    assert torch.allclose(p.sum(-1), torch.ones(50, dtype=torch.float64), atol=1e-12)
    assert p.min() >= 0
    assert 0 < int((p == 0).sum()) < p.numel()
    other = torch.rand(200, 50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1e-6
    other = torch.cat([other / other.sum(-1, keepdim=True), 0.999 * p[None] + 0.001 / 7])
    assert ((other - logits).square().sum(-1) >= (p - logits).square().sum(-1) - 1e-12).all()
    assert torch.equal(sparsemax(torch.tensor([[3.0, 1.0, -1e30]])), torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.allclose(sparsemax(torch.zeros(1, 4)), torch.full((1, 4), 0.25))


def test_sparsemax_has_its_gradient():
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    assert torch.autograd.gradcheck(sparsemax, (logits,))


def test_top_k_looks_at_the_largest_alone():
    logits = torch.tensor([[1.0, 3.0, 2.0, -1e30]])
    want = torch.tensor([[0.0, 3.0, 2.0, 0.0]])
    found = top_k_weights(logits, 2)
    assert torch.equal(found > 0, want > 0)
    assert torch.allclose(found[0, 1:3], torch.tensor([3.0, 2.0]).softmax(0))
    assert torch.equal(top_k_weights(logits, 9), logits.softmax(-1))


@pytest.mark.parametrize(("kind", "weights"), [("sparsemax", sparsemax), ("top_k", lambda z: top_k_weights(z, 2))])
def test_sparse_attention_by_hand(kind, weights):
    module = attention(softmax=kind)
    x = X / 10
    y = module(x, Pass())
    q, k, v = (x @ module.matrices()[role].double().T for role in ("query", "key", "value"))
    d = module.head_dim
    result = torch.zeros_like(y)
    for b in range(2):
        for head in range(4):
            own = slice(head * d, (head + 1) * d)
            for t in range(6):
                logits = (k[b, : t + 1, own] @ q[b, t, own]) / math.sqrt(d)
                result[b, t, own] = weights(logits[None])[0] @ v[b, : t + 1, own]
    assert torch.allclose(y, result @ module.matrices()["out"].double().T, atol=1e-6)
