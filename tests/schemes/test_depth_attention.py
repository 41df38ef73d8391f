"""Attention Residuals against an independent reference: nested loops over tokens and sources, from the paper's text."""

import math

import pytest
import torch

import normlab as nl
from normlab.errors import ConfigError
from normlab.schemes import Frame, make_sites

DIM = 6


def attend(sources, query, gain, eps=1e-6):
    """softmax_i( w . RMSNorm(v_i) ) v_i for one token, in plain Python floats."""
    scores = []
    for v in sources:
        root = math.sqrt(sum(c * c for c in v) / len(v) + eps)
        scores.append(sum(w * g * c / root for w, g, c in zip(query, gain, v, strict=True)))
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = sum(weights)
    return [sum(w / total * v[c] for w, v in zip(weights, sources, strict=True)) for c in range(len(sources[0]))]


def norm(v, gain, eps):
    root = math.sqrt(sum(c * c for c in v) / len(v) + eps)
    return [g * c / root for g, c in zip(gain, v, strict=True)]


def add(u, v):
    return [a + b for a, b in zip(u, v, strict=True)]


def reference(scheme, x, branches, sizes):
    """The paper's Block AttnRes, one token at a time. Block n is closed after `sizes[n]` branches."""
    result = torch.empty_like(x)
    queries, gains = scheme.queries.tolist(), scheme.key_gain.tolist()
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            blocks, partial, branch = [x[b, t].tolist()], None, 0
            for size in sizes:
                for _ in range(size):
                    sources = blocks if partial is None else [*blocks, partial]
                    h = attend(sources, queries[branch], gains[branch])
                    pre = scheme.pre[branch]
                    y = branches[branch](torch.tensor(norm(h, pre.weight.tolist(), pre.eps), dtype=x.dtype)).tolist()
                    partial = y if partial is None else add(partial, y)
                    branch += 1
                blocks, partial = [*blocks, partial], None
            h = attend(blocks, queries[-1], gains[-1])
            result[b, t] = torch.tensor(norm(h, scheme.final.weight.tolist(), scheme.final.eps), dtype=x.dtype)
    return result


def run(scheme, x, branches):
    stream = scheme.open(x)
    for site in scheme.frame.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branches[site.index](z), carry, site)
    return scheme.close(stream)


def randomised(config, depth=4, dim=DIM, **frame):
    scheme = config.build(Frame(dim, make_sites(depth), **frame)).double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter += torch.randn_like(parameter)
    weights = torch.randn(2 * depth, dim, dim, dtype=torch.float64)
    branches = [lambda z, w=w: torch.tanh(z @ w) * 2 for w in weights]
    return scheme, branches


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"blocks": 1}, [8]),
        ({"blocks": 2}, [4, 4]),
        ({"blocks": 3}, [2, 2, 2, 2]),
        ({"blocks": 5}, [1, 1, 1, 1, 1, 3]),
        ({"blocks": 8}, [1] * 8),
        ({"block_size": 3}, [3, 3, 2]),
        ({"block_size": 5}, [5, 3]),
        ({"block_size": 7}, [7, 1]),
        ({"block_size": 8}, [8]),
    ],
)
def test_block_agrees_with_nested_loops(options, sizes):
    config = nl.scheme("block_attn_res", **options)
    assert config.block_sizes(8) == sizes
    scheme, branches = randomised(config)
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    torch.testing.assert_close(run(scheme, x, branches), reference(scheme, x, branches, sizes), rtol=0, atol=1e-12)


def test_full_agrees_with_nested_loops():
    scheme, branches = randomised(nl.scheme("attn_res"))
    x = torch.randn(2, 3, DIM, dtype=torch.float64)
    torch.testing.assert_close(run(scheme, x, branches), reference(scheme, x, branches, [1] * 8), rtol=0, atol=1e-12)


def test_block_of_one_branch_is_full():
    full, branches = randomised(nl.scheme("attn_res"))
    block = nl.scheme("block_attn_res", block_size=1).build(full.frame).double()
    block.load_state_dict(full.state_dict())
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    torch.testing.assert_close(run(block, x, branches), run(full, x, branches), rtol=0, atol=1e-14)


@pytest.mark.parametrize("branches", range(1, 40))
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 8])
def test_the_remainder_rule(branches, blocks):
    """S = floor(M/N) a block, and the M mod N that remain are one extra block."""
    if blocks > branches:
        with pytest.raises(ConfigError, match="more than"):
            nl.scheme("block_attn_res", blocks=blocks).check(make_sites(branches, ("attention",)))
        return
    sizes = nl.scheme("block_attn_res", blocks=blocks).block_sizes(branches)
    assert sum(sizes) == branches
    assert sizes[:blocks] == [branches // blocks] * blocks
    assert sizes[blocks:] == ([branches % blocks] if branches % blocks else [])


# -- zero queries are Pre-Norm -------------------------------------------------------------------------------------------
def twins(name, *, eps, dtype, std=0.02, **options):
    shape = {"vocab_size": 61, "dim": 48, "depth": 12, "heads": 4, "eps": eps, "init_std": std}
    model = nl.Transformer(nl.TransformerConfig(**shape, scheme=nl.scheme(name, **options))).to(dtype)
    plain = nl.Transformer(nl.TransformerConfig(**shape, scheme="pre_norm")).to(dtype)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("scheme.")}, strict=False)
    return model, plain, torch.randint(0, 61, (3, 17))


SETTINGS = [("attn_res", {}), ("block_attn_res", {"blocks": 4}), ("block_attn_res", {"block_size": 5})]


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_zero_queries_are_pre_norm_in_float64(name, options):
    model, plain, tokens = twins(name, eps=0.0, dtype=torch.float64, **options)
    assert (model(tokens) - plain(tokens)).abs().max() <= 1e-12


@pytest.mark.parametrize("std", [0.02, 0.3])
@pytest.mark.parametrize(("name", "options"), [*SETTINGS, ("attn_res", {"mixing": "sigmoid"})])
def test_eps_is_compensated_in_float32(name, options, std):
    model, plain, tokens = twins(name, eps=1e-6, dtype=torch.float32, std=std, **options)
    gap = (model(tokens) - plain(tokens)).abs().max()
    assert gap <= 1e-5 * max(1.0, plain(tokens).abs().max().item())


def test_without_the_compensation_eps_would_bite():
    """The effect that the compensation removes: at small scale the 1/n shrink lets eps = 1e-6 through."""
    model, plain, tokens = twins("attn_res", eps=1e-6, dtype=torch.float32)
    for norm_ in (*model.scheme.pre, model.scheme.final):
        norm_.eps = 1e-6
    assert (model(tokens) - plain(tokens)).abs().max() > 1e-3


# -- variants ------------------------------------------------------------------------------------------------------------
def test_peri_inner_norm_joins_normalised_outputs():
    scheme, branches = randomised(nl.scheme("attn_res", inner="peri_norm"))
    with scheme.taped() as tape:
        run(scheme, torch.randn(1, 2, DIM, dtype=torch.float64), branches)
    for index, source in enumerate(tape.sources[1:]):
        unit = source / scheme.res[index].weight
        assert torch.allclose(unit.square().mean(-1), torch.ones(1, 2, dtype=torch.float64), atol=1e-4)


def test_sigmoid_static_window_and_heads_by_hand():
    values = torch.randn(5, 1, 1, DIM, dtype=torch.float64)
    sources = tuple(values)

    def scores(scheme, read, chosen):
        keys = chosen / (chosen.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scheme.key_gain[read]
        return keys * scheme.queries[read]

    sigmoid, _ = randomised(nl.scheme("attn_res", mixing="sigmoid"))
    alpha = torch.sigmoid(scores(sigmoid, 3, values).sum(-1, keepdim=True))
    torch.testing.assert_close(sigmoid.attend(sources, 3), (alpha * values).sum(0))

    static, _ = randomised(nl.scheme("attn_res", mixing="static"))
    torch.testing.assert_close(static.attend(sources, 4), torch.einsum("s,sbtd->btd", static.weights[4], values))

    window, _ = randomised(nl.scheme("attn_res", window=2))
    chosen = values[[0, 3, 4]]
    alpha = torch.softmax(scores(window, 4, chosen).sum(-1, keepdim=True), 0)
    torch.testing.assert_close(window.attend(sources, 4), (alpha * chosen).sum(0))

    heads, _ = randomised(nl.scheme("attn_res", heads=3))
    logits = scores(heads, 4, values)
    parts = []
    for head in range(3):
        cut = slice(2 * head, 2 * head + 2)
        alpha = torch.softmax(logits[..., cut].sum(-1, keepdim=True), 0)
        parts.append((alpha * values[..., cut]).sum(0))
    torch.testing.assert_close(heads.attend(sources, 4), torch.cat(parts, -1))

    project, _ = randomised(nl.scheme("attn_res", query="input"))
    keys = values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt() * project.key_gain[4]
    query = keys[-1] @ project.project[4].T
    alpha = torch.softmax((keys * query).sum(-1, keepdim=True), 0)
    torch.testing.assert_close(project.attend(sources, 4), (alpha * values).sum(0))


def test_there_is_no_cap_on_sources():
    scheme = nl.scheme("attn_res").build(Frame(4, make_sites(40)))
    sources = tuple(torch.full((1, 1, 4), float(i)) for i in range(81))
    assert torch.allclose(scheme.attend(sources, 80), torch.full((1, 1, 4), 40.0))


def test_the_output_is_a_read_of_its_own():
    model, _, tokens = twins("attn_res", eps=1e-6, dtype=torch.float64)
    before = model(tokens)
    with torch.no_grad():
        model.scheme.queries[-1].normal_()
    assert (model(tokens) - before).abs().max() > 1e-6


def test_depth_mixing_of_blocks():
    """Zero queries: a row of equal weights; every branch of a block has the same weight within a row."""
    model, _, tokens = twins("block_attn_res", eps=1e-6, dtype=torch.float64, block_size=5)
    with torch.no_grad():
        model.scheme.queries.normal_()
    matrix = model.depth_mixing(tokens)
    assert matrix.shape == (3, 17, 25, 25)
    torch.testing.assert_close(matrix[..., -1, 1:6], matrix[..., -1, 1:2].expand(3, 17, 5))
    assert (matrix[..., 1, 0] + matrix[..., 1, 1] - 1).abs().max() < 1e-12


def test_static_mixing_has_no_queries():
    with pytest.raises(ConfigError, match="no queries"):
        nl.scheme("attn_res", mixing="static", heads=2)
    with pytest.raises(ConfigError, match="4 depth heads do not divide the width 6"):
        nl.scheme("attn_res", heads=4).build(Frame(6, make_sites(2)))
