"""Measures of layers against closed forms and plain recomputation, for every scheme."""

import math

import pytest
import torch
from torch import nn

import normlab as nl
from normlab.experiments.measures import independent_sum, layer_measures, prune_curve, without
from normlab.observe.effect import branch_effects
from normlab.tasks import task
from normlab.training import cross_entropy

TASK = task("tomita", number=4)


def loss(model, batch):
    return cross_entropy(model(batch.tokens), batch, exact=False)


def made(scheme, depth=4):
    torch.manual_seed(0)
    config = nl.TransformerConfig(vocab_size=TASK.vocab_size, dim=16, depth=depth, heads=2, scheme=scheme)
    return nl.Transformer(config), TASK.sample(3, 12, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_every_scheme(scheme):
    model, batch = made(scheme)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    state = torch.get_rng_state()
    found = layer_measures(model, batch, loss)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert len(found.magnitude) == len(found.token_cosine) == 9
    assert found.effect == branch_effects(model, batch.tokens[:2])
    assert len(found.effect) == 8
    assert len(found.block_influence) == len(found.gradient) == len(found.skip) == 4
    assert found.prune[0] == pytest.approx(float(loss(model.eval(), batch).detach()), rel=1e-6)
    assert len(found.prune) == 3
    assert found.prune[1] - found.prune[0] == pytest.approx(min(found.skip), abs=1e-6)
    assert all(math.isfinite(v) for v in found.magnitude + found.gradient + found.prune)


def test_pre_norm_is_a_plain_sum():
    model, batch = made("pre_norm")
    found = layer_measures(model, batch, loss)
    assert torch.allclose(torch.tensor(found.mixing), torch.ones(9, 9).tril(), atol=1e-5)
    sizes = [found.embedding, *found.output]
    expected = [sum(v**2 for v in sizes[: i + 1]) ** 0.5 for i in range(9)]
    assert found.independent == pytest.approx(expected, rel=1e-5)
    assert found.magnitude[0] == pytest.approx(found.embedding)
    assert found.contribution == pytest.approx([v / h for v, h in zip(found.output, found.magnitude, strict=False)])


def test_a_model_without_its_layers_is_its_embedding():
    model, batch = made("pre_norm")
    with torch.no_grad(), without(model, range(4)):
        bare = model(batch.tokens)
    x = model.scheme.final(model.embed(batch.tokens, torch.arange(batch.tokens.shape[1])))
    assert torch.equal(bare, model.logits(x))
    assert "write" not in vars(model.scheme)
    with torch.no_grad():
        assert not torch.equal(bare, model(batch.tokens))


@pytest.mark.parametrize("scheme", ["pre_norm", "post_norm", "block_attn_res"])
def test_a_layer_whose_branches_are_zero_costs_nothing_to_remove(scheme):
    model, batch = made(scheme)
    with torch.no_grad():
        for site, branch in zip(model.sites, model.branches, strict=True):
            if site.layer == 2:
                branch.matrices()["out" if site.kind == "attention" else "down"].zero_()
    if scheme == "post_norm":
        model.scheme.out[2], model.scheme.out[3] = nn.Identity(), nn.Identity()  # the norms would still act
    found = prune_curve(model.eval(), batch, loss)
    assert found.skip[1] == pytest.approx(0, abs=1e-6)


def test_gradient_shares_are_the_gradients():
    model, batch = made("peri_norm")
    found = layer_measures(model, batch, loss)
    loss(model, batch).backward()
    norms = [
        math.sqrt(sum(float(p.grad.square().sum()) for s, b in zip(model.sites, model.branches, strict=True)
                      if s.layer == layer for p in b.parameters()))
        for layer in range(1, 5)
    ]  # fmt: skip
    assert found.gradient == pytest.approx(norms, rel=1e-5)
    assert found.gradient_share == pytest.approx([n / sum(norms) for n in norms], rel=1e-5)


def test_independent_sum_needs_all_three():
    assert independent_sum(None, [1.0], 1.0) is None
    assert independent_sum([[3.0, 0.0], [1.0, 4.0]], [1.0], 1.0) == pytest.approx([3.0, math.sqrt(17)])
