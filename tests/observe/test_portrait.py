"""The portrait against what plain code and closed forms say, for every scheme."""

import math

import pytest
import torch

import normlab as nl
from normlab.model.attention import Pass
from normlab.observe.portrait import portrait, rms, shares, turn, walk


def made(scheme, depth=3, **options):
    torch.manual_seed(0)
    model = nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=16, depth=depth, heads=2, scheme=scheme, **options))
    for parameter in model.parameters():  # away from the start, where gates are closed and queries zero
        parameter.data += 0.02 * torch.randn_like(parameter)
    tokens = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(1))
    return model.double(), tokens


def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_the_pass_is_not_changed_by_being_watched(scheme):
    """Values and gradients are those of a pass that nobody watches (the tape used to hold mixing coefficients fixed)."""
    model, tokens = made(scheme)
    loss = loss_of(model, tokens)
    loss.backward()
    found, seen = portrait(model, lambda: loss_of(model, tokens))
    assert found.loss == pytest.approx(loss.item(), rel=1e-12)
    for index, branch in enumerate(model.branches):
        square = sum(float(p.grad.square().sum()) for p in branch.parameters() if p.grad is not None)
        assert found.branches[index].gradient == pytest.approx(square**0.5, rel=1e-9)
    assert len(seen.inputs) == len(seen.outputs) == len(model.branches) == 6
    assert model.scheme._tape is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_every_scheme_tells_what_its_branches_read(scheme):
    model, tokens = made(scheme)
    found, seen = portrait(model, lambda: model.features(tokens), gradients=False)
    assert seen.complete
    assert len(found.reads) == 7
    assert all(value > 0 for value in found.reads)
    assert all(0 <= value <= 2 for value in found.turns)
    assert found.loss is found.gradient_shares is found.layer_gradients is None
    assert all(not h.requires_grad for h in seen.reads)


def test_pre_norm_by_hand():
    model, tokens = made("pre_norm", positions="nope")
    with torch.no_grad():
        h = model.embed(tokens, torch.arange(tokens.shape[1]))
        reads, added = [h], []
        shared = Pass()
        for norm, branch in zip(model.scheme.pre, model.branches, strict=True):
            added.append(branch(norm(h), shared))
            h = h + added[-1]
            reads.append(h)
    found, seen = portrait(model, lambda: model.features(tokens), gradients=False)
    assert found.reads == pytest.approx([float(x.square().mean().sqrt()) for x in reads], rel=1e-12)
    assert found.added == pytest.approx([float(x.square().mean().sqrt()) for x in added], rel=1e-12)
    assert found.contributions == pytest.approx([a / r for a, r in zip(found.added, found.reads, strict=False)])
    assert found.embedding == found.reads[0]
    assert [(b.layer, b.kind) for b in found.branches[:3]] == [(1, "attention"), (1, "ffn"), (2, "attention")]
    assert torch.equal(seen.outputs[0], seen.added[0])
    assert seen.summed == ()


def test_what_enters_the_norm_behind_the_sum():
    model, tokens = made("post_norm")
    seen = walk(model, lambda: model.features(tokens))
    assert len(seen.summed) == 6
    assert torch.equal(model.scheme.out[0](seen.summed[0]), seen.reads[1])


def test_ngpt_adds_nothing():
    model, tokens = made("ngpt")
    found, seen = portrait(model, lambda: model.features(tokens), gradients=False)
    assert seen.added is None
    assert found.added is found.contributions is None
    assert all(branch.contribution is None for branch in found.branches)


def test_shares_are_of_norms():
    assert shares([3.0, 1.0]) == [0.75, 0.25]
    assert shares([0.0, 0.0]) is None
    model, tokens = made("peri_norm")
    found, _ = portrait(model, lambda: loss_of(model, tokens))
    layers = [math.hypot(found.branches[2 * i].gradient, found.branches[2 * i + 1].gradient) for i in range(3)]
    assert found.layer_gradients == pytest.approx(layers)
    assert found.gradient_shares == pytest.approx([g / sum(layers) for g in layers])


def test_sizes_and_turns_in_closed_form():
    assert rms(torch.tensor([3.0, 4.0])) == pytest.approx(math.sqrt(12.5))
    a = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert turn(a, 3 * a) == pytest.approx(0, abs=1e-15)
    assert turn(a, torch.tensor([[0.0, 5.0], [0.0, -1.0]])) == pytest.approx(1.5)
