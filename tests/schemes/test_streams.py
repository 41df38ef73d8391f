"""nGPT, ResiDual, SiameseNorm, B2T, hyper-connections and DenseFormer against their equations written out."""

import math

import pytest
import torch

import normlab as nl
from normlab.schemes import Frame, make_sites

DIM, DEPTH = 6, 4
FRAME = Frame(DIM, make_sites(DEPTH))


def rms(x, weight, eps=1e-6):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.fixture
def branches():
    weights = torch.randn(2 * DEPTH, DIM, DIM, dtype=torch.float64)
    return [lambda z, w=w: torch.tanh(z @ w) for w in weights]


@pytest.fixture
def x():
    return torch.randn(2, 3, DIM, dtype=torch.float64)


def randomised(config, scale=0.3):
    scheme = config.build(FRAME).double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter += scale * torch.randn_like(parameter)
    return scheme


def run(scheme, x, branches):
    stream = scheme.open(x)
    for site in FRAME.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branches[site.index](z), carry, site)
    return scheme.close(stream)


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_ngpt(x, branches):
    scheme = randomised(nl.scheme("ngpt"))

    def unit(v):
        return v / v.norm(dim=-1, keepdim=True)

    h = unit(x)
    for i, f in enumerate(branches):
        alpha = (scheme.alpha[i] * 0.05 * math.sqrt(DIM)).abs()
        h = unit(h + alpha * (unit(f(h)) - h))
    close(run(scheme, x, branches), h)
    assert nl.scheme("ngpt").build(FRAME).step_size(FRAME.sites[3]).tolist() == pytest.approx([0.05] * DIM)


def test_ngpt_weights_return_to_the_sphere():
    model = nl.Transformer(
        nl.TransformerConfig(vocab_size=11, dim=8, depth=2, heads=2, scheme="ngpt", tie_embeddings=False)
    )
    for _ in range(2):
        for branch in model.branches:
            for role, weight in branch.matrices().items():
                axis = 0 if role in ("out", "down") else 1
                torch.testing.assert_close(weight.norm(dim=axis), torch.ones(weight.shape[1 - axis]))
        for table in (model.embedding.weight, model.head.weight):
            torch.testing.assert_close(table.norm(dim=1), torch.ones(11))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.7)
        model.after_step_()


def test_resi_dual(x, branches):
    scheme = randomised(nl.scheme("resi_dual"))
    a = d = x
    for i, f in enumerate(branches):
        y = f(a)
        a, d = rms(a + y, scheme.out[i].weight), d + y
    close(run(scheme, x, branches), a + rms(d, scheme.final.weight))


def test_siamese_norm(x, branches):
    scheme = randomised(nl.scheme("siamese_norm"))
    X = Y = x
    for i, f in enumerate(branches):
        X = rms(X, scheme.norm_x[i].weight)
        z = rms(X + rms(Y, scheme.norm_y[i].weight), scheme.pre[i].weight)
        o = f(z)
        X, Y = X + o / math.sqrt(2 * (i // 2 + 1)), Y + o
    total = rms(X, scheme.norm_x[-1].weight) + rms(Y, scheme.norm_y[-1].weight)
    close(run(scheme, x, branches), rms(total, scheme.final.weight))


def test_b2t(x, branches):
    scheme = randomised(nl.scheme("b2t"))
    expected = x
    for i in range(0, 2 * DEPTH, 2):
        h = rms(expected + branches[i](expected), scheme.out[i].weight)
        expected = rms(expected + h + branches[i + 1](h), scheme.out[i + 1].weight)
    close(run(scheme, x, branches), expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_hyper_connections(x, branches, n, dynamic):
    scheme = randomised(nl.scheme("hyper_connections", streams=n, dynamic=dynamic))
    H = [x] * n
    for i, f in enumerate(branches):
        A = [[scheme.mix[i, j, k].expand(x.shape[:-1]) for k in range(n + 1)] for j in range(n)]
        beta = [scheme.beta[i, j].expand(x.shape[:-1]) for j in range(n)]
        if dynamic:
            for j in range(n):
                moved = torch.tanh(rms(H[j], scheme.gain[i]) @ scheme.project[i])
                A[j] = [A[j][k] + scheme.scale[i, 0] * moved[..., k] for k in range(n + 1)]
                beta[j] = beta[j] + scheme.scale[i, 1] * moved[..., n + 1]
        h = sum(A[j][0][..., None] * H[j] for j in range(n))
        mixed = [sum(A[j][k + 1][..., None] * H[j] for j in range(n)) for k in range(n)]
        y = f(rms(h, scheme.pre[i].weight))
        H = [mixed[k] + beta[k][..., None] * y for k in range(n)]
    close(run(scheme, x, branches), rms(sum(H), scheme.final.weight, eps=1e-6 * n**2))


def test_hyper_connections_start():
    scheme = nl.scheme("hyper_connections", streams=3).build(FRAME)
    for i in range(2 * DEPTH):
        assert torch.equal(scheme.mix[i, :, 1:], torch.eye(3))
        assert torch.equal(scheme.mix[i, :, 0], torch.eye(3)[i % 3])
    assert torch.equal(scheme.beta, torch.ones(8, 3))
    assert (scheme.project == 0).all()
    assert (scheme.scale == 0.01).all()


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (2, 3), (3, 2)])
def test_dense_former(x, branches, dilation, period):
    scheme = randomised(nl.scheme("dense_former", dilation=dilation, period=period))
    outputs = [x]
    for m in range(1, DEPTH + 1):
        for i in (2 * m - 2, 2 * m - 1):
            x = x + branches[i](rms(x, scheme.pre[i].weight))
        outputs.append(x)
        if m % period == 0:
            chosen = [j for j in range(m + 1) if (m - j) % dilation == 0]
            assert len(chosen) == len(scheme.alpha[str(m)])
            x = sum(a * outputs[j] for a, j in zip(scheme.alpha[str(m)], chosen, strict=True))
    close(run(scheme, outputs[0], branches), rms(x, scheme.final.weight))
