"""mHC: the verbs against the equation written out, each head and start, and the numbers of the former default."""

import pytest
import torch

import normlab as nl
from normlab import testing
from normlab.errors import ConfigError
from normlab.schemes import Frame, make_sites

DIM, DEPTH = 6, 4
FRAME = Frame(DIM, make_sites(DEPTH))


def rms(x, weight=1.0, eps=1e-6):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def randomised(config, scale=0.3):
    torch.manual_seed(0)
    scheme = config.build(FRAME).double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter += scale * torch.randn_like(parameter)
    return scheme


def written_out(scheme, x, branches):
    """X <- H_res X + H_post^T F(N(H_pre X)), a line for each symbol."""
    config, n = scheme.config, scheme.streams
    X = torch.stack([x] * n, dim=-2)
    read = torch.eye(n, dtype=x.dtype)[0].expand(*x.shape[:-1], n)
    for i, f in enumerate(branches):
        raw = rms(X.flatten(-2)) @ scheme.project[i]
        pre = torch.sigmoid(scheme.alpha[i, 0] * raw[..., :n] + scheme.bias[i, :n]) + config.eps
        post = 2 * torch.sigmoid(scheme.alpha[i, 1] * raw[..., n : 2 * n] + scheme.bias[i, n : 2 * n])
        res = scheme.alpha[i, 2] * raw[..., 2 * n :] + scheme.bias[i, 2 * n :]
        res = torch.softmax(res.unflatten(-1, (n, n)), dim=-2) + config.eps
        for step in range(1, 2 * config.iterations):
            res = res / (res.sum(-1 if step % 2 else -2, keepdim=True) + config.eps)
        used = read if config.single_pass else pre
        y = f(rms((used[..., None] * X).sum(-2), scheme.pre[i].weight))
        X = torch.einsum("btij,btjd->btid", res, X) + post[..., None] * y[..., None, :]
        read = pre
    if config.closing == "learned":
        raw = rms(X.flatten(-2)) @ scheme.head.project
        read = torch.sigmoid(scheme.head.alpha * raw + scheme.head.bias) + config.eps
    elif config.closing is not None:
        read = torch.full((n,), 1.0 if config.closing == "sum" else 1 / n, dtype=x.dtype)
    closes_at = n if config.closing == "sum" else 1
    return rms((read[..., None] * X).sum(-2), scheme.final.weight, eps=1e-6 * closes_at**2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"streams": 2, "head": "mean", "eps": 1e-2},
        {"head": "sum"},
        {"initial": "stream", "streams": 3},
        {"initial": "stream", "head": "learned", "eps": 1e-3},
        {"single_pass": True, "eps": 1e-3},
    ],
    ids=str,
)
def test_the_equation(options):
    scheme = randomised(nl.scheme("mhc", **options))
    weights = torch.randn(2 * DEPTH, DIM, DIM, dtype=torch.float64)
    branches = [lambda z, w=w: torch.tanh(z @ w) for w in weights]
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    stream = scheme.open(x)
    for site in FRAME.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branches[site.index](z), carry, site)
    torch.testing.assert_close(scheme.close(stream), written_out(scheme, x, branches), rtol=0, atol=1e-12)


def test_the_papers_start():
    """A.6: b_pre = -3 with +3 on the home stream, b_post = 0, b_res = 6I - 3, no data-dependent part; a head that is
    the mean."""
    scheme = nl.scheme("mhc").build(FRAME)
    for i, bias in enumerate(scheme.bias):
        assert bias[:4].tolist() == [3.0 if k == i % 4 else -3.0 for k in range(4)]
        assert (bias[4:8] == 0).all()
        assert torch.equal(bias[8:].view(4, 4), 6 * torch.eye(4) - 3)
    assert (scheme.project == 0).all()
    assert (scheme.alpha == 0.01).all()
    torch.testing.assert_close(scheme.head(torch.randn(2, 4, DIM)), torch.full((2, 4), 0.25))


# Seen with the default of version 0.1, in which initial: stream was the default and the head a plain sum.
FORMER = [
    ({"initial": "stream"}, [-0.0917340517, 0.0558546893, 0.132235989], 11.5127251504, 0.00104407836, 2.05774546),
    (
        {"initial": "identity", "streams": 3},
        [-0.0815697238, 0.0419015177, 0.0974898934],
        9.94527287229,
        0.00085169458,
        2.47294569,
    ),
]


@pytest.mark.parametrize(("options", "logits", "square", "gradient", "loss"), FORMER, ids=["stream", "identity"])
def test_the_former_default_gives_its_former_numbers(options, logits, square, gradient, loss):
    old = {"start": "authors", "init_std": 0.02, "embedding_scale": 1.0}
    model, tokens = testing.tiny_model(nl.scheme("mhc", **options), **old), testing.some_tokens()
    found = model(tokens)
    assert found[0, 3, :3].tolist() == pytest.approx(logits, rel=2e-6)
    assert found.double().square().sum().item() == pytest.approx(square, rel=1e-6)
    gradients = testing.gradients_of(model, tokens)
    assert gradients["scheme.project"].double().norm().item() == pytest.approx(gradient, rel=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        reached = testing.loss_of(model, tokens)
        reached.backward()
        optimizer.step()
    assert reached.item() == pytest.approx(loss, rel=1e-5)


def test_h_res_is_n_by_n_doubly_stochastic_and_applied():
    model = nl.Transformer(nl.TransformerConfig(vocab_size=19, dim=16, depth=3, heads=2, scheme="mhc"))
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        # Away from the near-identity start, where Sinkhorn converges slowly (see the next test).
        model.scheme.bias[:, 8:].normal_()
    seen = []
    original = model.scheme.coefficients

    def recorded(streams, site):
        seen.append(original(streams, site))
        return seen[-1]

    model.scheme.coefficients = recorded
    tokens = torch.randint(0, 19, (2, 5))
    before = model(tokens)
    for h_pre, h_post, h_res in seen:
        assert h_res.shape == (2, 5, 4, 4)
        assert (h_res >= 0).all()
        assert (h_res.sum(-1) - 1).abs().max() < 1e-3
        assert (h_res.sum(-2) - 1).abs().max() < 1e-3
        assert (h_res - 0.25).abs().max() > 0.05, "neither uniform nor the identity: the test says something"
        assert ((h_pre > 0) & (h_pre < 1) & (h_post > 0) & (h_post < 2)).all()
    model.scheme.coefficients = lambda s, site: (*original(s, site)[:2], torch.eye(4).expand(2, 5, 4, 4))
    assert (model(tokens) - before).abs().max() > 1e-4, "H_res is computed but not applied"


def spread(initial, move):
    """How far the columns of H_res are from 1 after a random move of the biases of this size."""
    scheme = nl.scheme("mhc", initial=initial).build(Frame(16, make_sites(12)))
    with torch.no_grad():
        scheme.bias += move * torch.randn(scheme.bias.shape, generator=torch.Generator().manual_seed(0))
    streams = torch.randn(4, 8, 4, 16)
    return max((scheme.coefficients(streams, s)[2].sum(-2) - 1).abs().max().item() for s in scheme.frame.sites)


@pytest.mark.parametrize(
    ("initial", "move", "least", "most"),
    [
        ("stream", 0.0, 0, 1e-6),
        ("stream", 0.1, 1e-5, 1e-3),
        ("stream", 1.0, 5e-3, 0.1),
        ("paper", 0.0, 0, 1e-6),
        ("paper", 0.1, 1e-3, 3e-3),
        ("paper", 1.0, 1e-2, 4e-2),
    ],
)
def test_how_doubly_stochastic_twenty_steps_are_near_the_start(initial, move, least, most):
    """The card's trap: near the identity the columns converge slowly, because the second singular value is near 1."""
    assert least <= spread(initial, move) <= most


def test_impossible_options_are_one_sentence():
    with pytest.raises(ConfigError, match="the last H_pre is the head"):
        nl.scheme("mhc", single_pass=True, head="mean")
    with pytest.raises(ConfigError, match="8 streams are more than the width 6 has channels; give 6 or fewer"):
        nl.scheme("mhc", streams=8).build(FRAME)
