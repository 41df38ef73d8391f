"""The residuals of 2026 against their equations written out: gated streams, more skips, sources over depth."""

import math

import pytest
import torch
import torch.nn.functional as F

import normlab as nl
from normlab.errors import ConfigError
from normlab.schemes import Frame, make_sites
from normlab.schemes.norms import make_norm

DIM, DEPTH = 8, 4
FRAME = Frame(DIM, make_sites(DEPTH))


def rms(x, weight=1.0, eps=1e-6):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def randomised(name, **options):
    torch.manual_seed(0)
    scheme = nl.scheme(name, **options).build(FRAME).double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return scheme


@pytest.fixture
def branches():
    weights = torch.randn(2 * DEPTH, DIM, DIM, dtype=torch.float64)
    return [lambda z, w=w: torch.tanh(z @ w) for w in weights]


@pytest.fixture
def x():
    return torch.randn(2, 3, DIM, dtype=torch.float64)


def run(scheme, x, branches):
    stream = scheme.open(x)
    for site in FRAME.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branches[site.index](z), carry, site)
    return scheme.close(stream)


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3])
def test_independent_hc(x, branches, n):
    scheme = randomised("independent_hc", streams=n, magnitude=1.5, eps=1e-3)
    X = torch.stack([x] * n, dim=-2)
    for i, f in enumerate(branches):
        raw = rms(X.flatten(-2)) @ scheme.project[i]
        pre = torch.sigmoid(scheme.alpha[i, 0] * raw[..., :n] + scheme.bias[i, :n]) + 1e-3
        post = 1.5 * torch.sigmoid(scheme.alpha[i, 1] * raw[..., n:] + scheme.bias[i, n:]) + 1e-3
        y = f(rms((pre[..., None] * X).sum(-2), scheme.pre[i].weight))
        X = X + post[..., None] * y[..., None, :]
    raw = rms(X.flatten(-2)) @ scheme.head.project
    weights = torch.sigmoid(scheme.head.alpha * raw + scheme.head.bias) + 1e-3
    close(run(scheme, x, branches), rms((weights[..., None] * X).sum(-2), scheme.final.weight))


def test_gated_residual(x, branches):
    n, scheme = 3, randomised("gated_residual", streams=3, rank=5)
    X = [x] * n

    def mixed(at):
        normed = [rms(X[k], scheme.norms[at][k].weight) for k in range(n)]
        flat = torch.cat(normed, dim=-1)
        gates = torch.sigmoid(F.silu(flat @ scheme.down[at].T / n) @ scheme.up[at].T).split(DIM, dim=-1)
        return flat, sum(g * z for g, z in zip(gates, normed, strict=True)) / n

    for i, f in enumerate(branches):
        flat, z = mixed(i)
        post = 2 * torch.sigmoid(flat @ scheme.inject[i].T / n)
        y = f(z)
        X = [X[k] + post[..., k : k + 1] * y for k in range(n)]
    close(run(scheme, x, branches), mixed(2 * DEPTH)[1])


@pytest.mark.parametrize("backout", [False, True])
def test_lambda_skip_is_the_loop(x, branches, backout):
    """nanochat's loop: lambda x + mu x0 before each layer, and the stream after layer L//2 (from 0) subtracted."""
    scheme = randomised("lambda_skip", backout=backout)
    x0 = h = rms(x, scheme.embedding.weight)
    for i in range(DEPTH):
        h = scheme.keep[i] * h + scheme.again[i] * x0
        for j in (2 * i, 2 * i + 1):
            h = h + branches[j](rms(h, scheme.pre[j].weight))
        if i == DEPTH // 2:
            middle = h
    h = h - scheme.beta * middle if backout else h
    close(run(scheme, x, branches), rms(h, scheme.final.weight))


def test_lambda_skip_start():
    scheme = nl.scheme("lambda_skip", backout=True).build(FRAME)
    assert scheme.keep.tolist() == pytest.approx([1.15 - 0.10 * i / 3 for i in range(4)])
    assert scheme.again.tolist() == pytest.approx([0.20 - 0.15 * i / 3 for i in range(4)])
    assert scheme.beta.tolist() == pytest.approx([0.2])


def test_laurel(x, branches):
    scheme = randomised("laurel", rank=3)
    h = x
    for i in range(0, 2 * DEPTH, 2):
        z = rms(h, scheme.pre[i].weight)
        low = rms(z @ scheme.left[i // 2].T @ scheme.right[i // 2].T, scheme.low_rank_norm[i // 2].weight)
        h = (h + rms(branches[i](z), scheme.res[i].weight) + z + low) / math.sqrt(2)
        h = h + rms(branches[i + 1](rms(h, scheme.pre[i + 1].weight)), scheme.res[i + 1].weight)
    close(run(scheme, x, branches), rms(h, scheme.final.weight))


@pytest.mark.parametrize("null", [False, True])
def test_delta_attn_res(x, branches, null):
    scheme = randomised("delta_attn_res", null_source=null)
    h, sources = x, []
    for i, f in enumerate(branches):
        options = [scheme.null[i].expand_as(x)] if null else []
        options += sources
        read = h
        if options:
            values = torch.stack(options)
            logits = (rms(values, scheme.key_gain[i]) * scheme.queries[i]).sum(-1)
            read = h + (torch.softmax(logits, 0)[..., None] * values).sum(0)
        eps = 1e-6 * (1 + (1 / len(options) if i else 0)) ** 2
        y = f(rms(read, scheme.pre[i].weight, eps=eps))
        sources = [*(sources or [x]), y]
        h = h + y
    close(run(scheme, x, branches), rms(h, scheme.final.weight))


def test_mudd(x, branches):
    scheme = randomised("mudd")
    h, sources = x, [x]
    for i in range(DEPTH):
        for j in (2 * i, 2 * i + 1):
            h = h + branches[j](rms(h, scheme.pre[j].weight))
        sources.append(h)
        weights = F.gelu(rms(h) @ scheme.inner[i].T) @ scheme.outer[i].T + scheme.static[i]
        h = sum(weights[..., k : k + 1] * v for k, v in enumerate(sources))
    close(run(scheme, x, branches), rms(h, scheme.final.weight))


def test_residual_scaling(x, branches):
    scheme = randomised("residual_scaling")
    h = (x + scheme.embedding_shift) * scheme.embedding_scale
    for i, f in enumerate(branches):
        y = f(rms(h, scheme.pre[i].weight))
        h = scheme.a.values[i] * (h + scheme.skip_shift[i]) + scheme.b.values[i] * (y + scheme.branch_shift[i])
    close(run(scheme, x, branches), rms(h, scheme.final.weight))


def test_derf():
    norm = make_norm("derf", DIM, eps=1e-6).double()
    assert [norm.alpha.item(), norm.shift.item()] == [0.5, 0.0]
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn_like(parameter)
    x = torch.randn(3, DIM, dtype=torch.float64)
    close(norm(x), norm.weight * torch.erf(norm.alpha * x + norm.shift) + norm.bias)


@pytest.mark.parametrize("name", ["independent_hc", "gated_residual"])
def test_one_stream_and_too_many_are_one_sentence(name):
    with pytest.raises(ConfigError, match=r"streams: .*2"):
        nl.scheme(name, streams=1)
    with pytest.raises(ConfigError, match="9 streams are more than the width 8 has channels; give 8 or fewer"):
        nl.scheme(name, streams=9).build(FRAME)


def test_random_starts_do_not_move_the_global_random_numbers():
    for name in ("independent_hc", "gated_residual", "laurel", "mudd", "mhc"):
        torch.manual_seed(3)
        nl.scheme(name).build(FRAME)
        assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3))), name
