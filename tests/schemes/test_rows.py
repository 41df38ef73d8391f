"""The single-stream family against its equations written out, and its constants against the papers'."""

import math

import pytest
import torch
from torch import nn

import normlab as nl
from normlab.model.attention import Pass
from normlab.schemes import Frame, make_sites
from normlab.schemes.rows import ROWS


def rms(x, weight, eps=1e-6):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def by_hand(name, x, branch, scheme, site):
    """x after one branch, as each paper writes it."""
    i, l, depth, count = site.index, site.layer, site.layers, site.count
    F, N = branch, rms
    pre, res, out = (getattr(norms[i], "weight", None) for norms in (scheme.pre, scheme.res, scheme.out))
    if name == "post_norm":
        return N(x + F(x), out)
    if name == "pre_norm":
        return x + F(N(x, pre))
    if name == "gpas":
        g = scheme.gate[l - 1]
        return (x + F(N(x, pre))) * (1 - g * torch.sigmoid(g))
    if name in ("peri_norm", "peri_init_norm"):
        return x + N(F(N(x, pre)), res)
    if name == "res_norm":
        return x + N(F(x), res)
    if name == "mix_norm":
        return N(x + F(x), out) if l <= math.floor(0.25 * depth) else x + F(N(x, pre))
    if name == "ln_scaling":
        return x + F(N(x, pre) / math.sqrt(l))
    if name == "sqrt_scaling":
        return N(x + F(x) / math.sqrt(l + 1), out)
    if name == "deep_norm":
        return N((2 * depth) ** 0.25 * x + F(x), out)
    if name == "keel":
        if l == 1:
            return x + F(N(x, pre)) if site.kind == "attention" else N(x + F(N(x, pre)), out)
        return N(count * x + F(N(x, pre)), out)
    if name == "rezero":
        return x + scheme.b.values[l - 1] * F(x)
    if name == "layer_scale":
        return x + scheme.b.values[i] * F(N(x, pre))
    if name == "admin":
        return N(scheme.a.values[i] * x + F(x), out)
    if name == "sub_norm":
        return x + F(N(x, pre))
    if name == "hybrid_norm":
        return x + F(x) if site.kind == "attention" else N(x, pre) + F(N(x, pre))
    if name == "no_norm":
        return x + F(x)
    if name == "residual_scaling":
        i = site.index
        y = F(rms(x, scheme.pre[i].weight)) + scheme.branch_shift[i]
        return scheme.a.values[i] * (x + scheme.skip_shift[i]) + scheme.b.values[i] * y
    raise AssertionError(name)


@pytest.mark.parametrize("name", ROWS)
def test_each_row_is_its_equation(name):
    frame = Frame(10, make_sites(5))
    scheme = nl.scheme(name).build(frame).double()
    with torch.no_grad():  # every gain, scalar and gate away from its start, so that nothing is tested at zero
        for parameter in scheme.parameters():
            parameter.normal_(1.0, 0.3)
    x = torch.randn(2, 3, 10, dtype=torch.float64)
    stream = scheme.open(x)
    expected = rms(x, scheme.embedding.weight) if name == "peri_init_norm" else x
    if name == "residual_scaling":
        expected = (x + scheme.embedding_shift) * scheme.embedding_scale
    for site in frame.sites:
        weight = torch.randn(10, 10, dtype=torch.float64)

        def branch(z, weight=weight):
            return torch.tanh(z @ weight)

        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branch(z), carry, site)
        expected = by_hand(name, expected, branch, scheme, site)
        torch.testing.assert_close(stream, expected, rtol=0, atol=1e-12)
    ends_with_norm = name not in ("post_norm", "sqrt_scaling", "deep_norm", "keel", "rezero", "admin", "no_norm")
    expected = rms(expected, scheme.final.weight) if ends_with_norm else expected
    torch.testing.assert_close(scheme.close(stream), expected, rtol=0, atol=1e-12)


def test_gpas_hides_its_shrinking_from_the_gradient():
    """dL/dx of x - SiLU(g) stopgrad(x) is dL/dy; dL/dg sees the shrinking."""
    frame = Frame(4, make_sites(1, ("attention",)))
    scheme = nl.scheme("gpas", final_norm=False).build(frame).double()
    with torch.no_grad():
        scheme.gate.fill_(0.7)
    x = torch.randn(1, 1, 4, dtype=torch.float64, requires_grad=True)
    y = scheme.write(scheme.open(x), torch.zeros_like(x), None, frame.sites[0])
    y.sum().backward()
    sigmoid = 1 / (1 + math.exp(-0.7))
    assert torch.equal(x.grad, torch.ones_like(x))
    torch.testing.assert_close(y, x * (1 - 0.7 * sigmoid))
    slope = sigmoid * (1 + 0.7 * (1 - sigmoid))
    assert scheme.gate.grad.item() == pytest.approx(-slope * x.sum().item())


def test_admin_starts_at_sqrt_i():
    scheme = nl.scheme("admin").build(Frame(3, make_sites(2)))
    assert scheme.a.values[:, 0].tolist() == pytest.approx([1, 2**0.5, 3**0.5, 2])


def test_fixed_numbers_stay_exact_in_any_dtype_and_guard_loading():
    scheme = nl.scheme("deep_norm").build(Frame(8, make_sites(96)))
    x = torch.ones(1, 1, 8, dtype=torch.float64)
    assert scheme.double().a(x, make_sites(96)[0])[0, 0, 0].item() == 192**0.25
    other = nl.scheme("deep_norm", alpha=1.5).build(Frame(8, make_sites(96)))
    with pytest.raises(RuntimeError, match="but the config says"):
        other.load_state_dict(scheme.state_dict())


# -- initialisations -----------------------------------------------------------------------------------------------------
def spread(model, role, layer):
    branch = model.branches[2 * layer + (role in ("up", "gate", "down"))]
    return branch.matrices()[role].std().item()


def xavier(model, role, layer, gain=1.0):
    branch = model.branches[2 * layer + (role in ("up", "gate", "down"))]
    rows, columns = branch.matrices()[role].shape
    return gain * math.sqrt(2 / (rows + columns))


def wide(scheme, depth=12):
    """As the scheme's authors start it; tests/schemes/test_start.py has the fair start."""
    shape = {"vocab_size": 7, "dim": 192, "depth": depth, "heads": 4}
    return nl.Transformer(nl.TransformerConfig(scheme=scheme, start="authors", **shape))


@pytest.mark.parametrize(
    ("layers", "alpha", "beta"), [(12, 2.2133638, 0.31947155), (24, 2.6321480, 0.26864248), (96, 3.7224194, 0.18995892)]
)
def test_deep_norm_constants(layers, alpha, beta):
    """alpha = (2L)^(1/4), beta = (8L)^(-1/4): Table 2 of the paper, encoder-only or decoder-only."""
    assert alpha == pytest.approx((2 * layers) ** 0.25, rel=1e-6)
    assert beta == pytest.approx((8 * layers) ** -0.25, rel=1e-6)
    frame = Frame(16, make_sites(layers))
    scheme = nl.scheme("deep_norm").build(frame)
    assert scheme.a.values.tolist() == pytest.approx([alpha] * (2 * layers), rel=1e-6)
    model = wide("deep_norm", depth=2)
    model.scheme.frame = Frame(192, make_sites(layers))
    site = make_sites(layers)[0]
    model.scheme.init_branch_(model.branches[0], site)
    model.scheme.init_branch_(model.branches[1], site)
    for role in ("value", "out", "up", "gate", "down"):
        assert spread(model, role, 0) == pytest.approx(xavier(model, role, 0, beta), rel=0.03), role
    for role in ("query", "key"):
        assert spread(model, role, 0) == pytest.approx(xavier(model, role, 0), rel=0.03), role


def test_ln_scaling_survives_meta_construction():
    with torch.device("meta"):
        model = nl.Transformer(nl.TransformerConfig(vocab_size=7, dim=8, depth=9, heads=2, scheme="ln_scaling"))
    model.to_empty(device="cpu")
    model.init_weights()
    expected = torch.tensor([layer**-0.5 for layer in range(1, 10) for _ in range(2)])
    assert torch.equal(model.state_dict()["scheme.c.values"], expected)


def test_gpt2_residual_scale_and_plain_init():
    for name in ("pre_norm", "hybrid_norm", "block_attn_res", "hyper_connections"):
        model = wide(name)
        assert spread(model, "out", 3) == pytest.approx(0.02 / math.sqrt(24), rel=0.03)
        assert spread(model, "down", 3) == pytest.approx(0.02 / math.sqrt(24), rel=0.03)
        assert spread(model, "query", 3) == pytest.approx(0.02, rel=0.03)
    for name in ("peri_norm", "ln_scaling", "layer_scale", "keel"):
        model = wide(name)
        assert spread(model, "out", 3) == pytest.approx(0.02, rel=0.03), name


def test_sub_norm_gain():
    model = wide("sub_norm")
    gain = math.sqrt(math.log(24))
    for role in ("value", "out", "up", "down"):
        assert spread(model, role, 0) == pytest.approx(xavier(model, role, 0, gain), rel=0.03)
    assert spread(model, "query", 0) == pytest.approx(xavier(model, "query", 0), rel=0.03)
    assert isinstance(model.branches[0].inner_norm, nn.Module)


@pytest.mark.parametrize(("depth", "value"), [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6), (48, 1e-6)])
def test_layer_scale_follows_depth(depth, value):
    scheme = nl.scheme("layer_scale").build(Frame(4, make_sites(depth)))
    assert torch.equal(scheme.b.values, torch.full((2 * depth, 4), value))


def test_rezero_shares_a_scalar_per_layer():
    scheme = nl.scheme("rezero").build(Frame(4, make_sites(3)))
    assert scheme.b.values.shape == (3,)
    assert scheme.b.slot == [0, 0, 1, 1, 2, 2]


def test_admin_profile_follows_the_branch_variances():
    shape = {"vocab_size": 31, "dim": 32, "depth": 3, "heads": 2}
    model = nl.Transformer(nl.TransformerConfig(scheme="admin", start="authors", **shape))
    tokens = torch.randint(0, 31, (8, 16))
    model.scheme.profile_(lambda: model(tokens))
    plain = nl.Transformer(model.config.replace(scheme=nl.scheme("post_norm")))
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad(), plain.scheme.taped() as tape:
        plain(tokens)
    total = 1.0
    for index, source in enumerate(tape.sources[1:]):
        assert model.scheme.a.values[index].tolist() == pytest.approx([math.sqrt(total)] * 32, rel=1e-5)
        total += source.var(unbiased=False).item()
    assert total > 1.5


# -- Xiong et al. 2020 ---------------------------------------------------------------------------------------------------
def xiong_model(scheme, dim=128, depth=6):
    """Their assumptions: one head, d x d weights, W_Q = W_K = 0, N(0, 1/d), ReLU, LayerNorm, no positions."""
    config = nl.TransformerConfig(
        vocab_size=2, dim=dim, depth=depth, heads=1, scheme=scheme, norm="layernorm", ffn="relu", ffn_dim=dim,
        positions="nope", causal=False,
    )  # fmt: skip
    return nl.Transformer(config)


def redraw_(model):
    for branch in model.branches:
        for role, weight in branch.matrices().items():
            nn.init.zeros_(weight) if role in ("query", "key") else nn.init.normal_(weight, std=model.config.dim**-0.5)


@torch.no_grad()
def squared_norms(model, networks=40, tokens=8):
    """|x|^2 / d after each branch, and what enters each output norm (Post-LN's x^{post,5})."""
    entering = {}
    for index, norm in enumerate(model.scheme.out):
        norm.register_forward_pre_hook(lambda m, a, index=index: entering.setdefault(index, []).append(a[0]))
    after = torch.zeros(len(model.sites))
    for _ in range(networks):  # uniform attention makes tokens alike, so only fresh weights average
        redraw_(model)
        stream = model.scheme.open(torch.randn(1, tokens, model.config.dim))
        for site, branch in zip(model.sites, model.branches, strict=True):
            x, carry = model.scheme.read(stream, site)
            stream = model.scheme.write(stream, branch(x, Pass()), carry, site)
            after[site.index] += stream.square().mean() / networks
    return after, [torch.stack(entering[i]).square().mean().item() for i in range(len(model.sites))]


def test_post_norm_is_three_halves_d():
    _, entering = squared_norms(xiong_model("post_norm"))
    for value in entering[1::2]:
        assert value == pytest.approx(1.5, rel=0.05)


def test_pre_norm_stays_between_its_bounds():
    after, _ = squared_norms(xiong_model("pre_norm"))
    for layer, value in enumerate(after[1::2].tolist(), 1):
        assert 1 + layer / 2 <= value * 1.03
        assert value <= 1.03 * (1 + 3 * layer / 2)
        # The bound of a circulating summary, (1 + 2l) d, lies above the upper one: it cannot be meant.
        assert 1 + 2 * layer > 1 + 3 * layer / 2 > value * 0.97
