"""The effect of a branch against closed forms, against a plain loop with hooks, and between schemes that are one function."""

import math

import pytest
import torch
from torch import nn

import normlab as nl
from normlab.observe.effect import branch_effects
from normlab.observe.portrait import portrait
from normlab.schemes import Frame, make_sites


def made(scheme, *, depth=3, moved=0.02):
    torch.manual_seed(0)
    model = nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=16, depth=depth, heads=2, scheme=scheme))
    for parameter in model.parameters():  # away from the start, where gates are closed and queries zero
        parameter.data += moved * torch.randn_like(parameter)
    return model.double(), torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(1))


def relative(h, whole):
    return float(((h - whole).norm(dim=-1) / whole.norm(dim=-1)).mean())


@torch.no_grad()
def by_hooks(model, tokens):
    """A whole pass for each branch, whose output a hook replaces."""
    model.eval()
    whole, effects = model.features(tokens), []
    for branch in model.branches:
        hook = branch.register_forward_hook(lambda module, taken, out: torch.zeros_like(out))
        effects.append(relative(model.features(tokens), whole))
        hook.remove()
    return effects


@pytest.mark.parametrize("scheme", sorted(nl.SCHEMES))
def test_every_scheme_as_a_plain_loop_has_it(scheme):
    model, tokens = made(scheme)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    effects = branch_effects(model, tokens)
    assert effects == pytest.approx(by_hooks(model, tokens), rel=1e-9)
    assert max(effects) > 1e-6
    assert len(effects) == 6
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert "write" not in vars(model.scheme)


def test_memory_is_bounded_and_the_mode_kept():
    model, tokens = made("mhc")
    model.train()
    effects, sizes = branch_effects(model, tokens), []
    hook = model.branches[0].register_forward_hook(lambda module, taken, out: sizes.append(len(out)))
    assert branch_effects(model, tokens, at_once=4 * tokens.numel()) == pytest.approx(effects, rel=1e-12)
    hook.remove()
    assert sizes == [8, 8], "three branches at a time beside the whole model, two sequences each"
    assert model.training


class Sums(nn.Module):
    """Branch i puts out c_i times the i-th unit vector, whatever it reads; the embedding is the 0-th."""

    def __init__(self, scheme, sizes):
        super().__init__()
        self.sites, self.sizes = make_sites(len(sizes) // 2), sizes
        self.scheme = nl.scheme(scheme).build(Frame(8, self.sites, eps=0.0))
        self.branches = nn.ModuleList(nn.Identity() for _ in sizes)

    def features(self, tokens):
        unit = torch.eye(8).double().expand(*tokens.shape, 8, 8)
        stream = self.scheme.open(unit[..., 0, :])
        for site, size in zip(self.sites, self.sizes, strict=True):
            _, carry = self.scheme.read(stream, site)
            stream = self.scheme.write(stream, size * unit[..., 1 + site.index, :], carry, site)
        return self.scheme.close(stream)


SIZES = (0.5, 2.0, 0.0, 1.0)


def test_a_sum_in_closed_form():
    """h = e_0 + sum c_i e_i behind a norm of |h|^2 = 6.25; without branch i the norm brings the rest to the same length."""
    model = Sums("pre_norm", SIZES).double()
    whole = 1 + sum(c * c for c in SIZES)
    turned = [math.sqrt(2 - 2 * math.sqrt((whole - c * c) / whole)) for c in SIZES]  # of two vectors of one length
    effects = branch_effects(model, torch.zeros(1, 3, dtype=torch.long))
    assert effects == pytest.approx(turned, abs=1e-12)
    assert effects[2] == 0.0
    model.scheme.final = nn.Identity()  # without the norm what is taken out is the branch itself
    plain = branch_effects(model, torch.zeros(1, 3, dtype=torch.long))
    assert plain == pytest.approx([c / math.sqrt(whole) for c in SIZES], abs=1e-12)


def test_post_norm_in_closed_form():
    """Each addition is brought back to |h| = sqrt(8): branch i keeps c_i / sqrt(8 + c_i^2) of the direction, and fades."""
    model = Sums("post_norm", SIZES).double()
    before = torch.zeros(8).double()
    streams = {i: before.clone() for i in (None, *range(4))}
    for out, h in streams.items():
        h[0] = 1
        for i, c in enumerate(SIZES):
            h[1 + i] += 0 if i == out else c
            h *= math.sqrt(8) / h.norm()
    expected = [relative(streams[i][None], streams[None][None]) for i in range(4)]
    assert branch_effects(model, torch.zeros(2, 3, dtype=torch.long)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scheme", ["attn_res", "block_attn_res(blocks=2)"])
def test_one_function_has_one_effect(scheme):
    """With queries of zero Attention Residuals read means where Pre-Norm reads sums: contributions differ, effects do not."""
    (sums, tokens), (means, _) = (made(name, depth=4, moved=0.0) for name in ("pre_norm", scheme))
    assert torch.allclose(sums(tokens), means(tokens), rtol=0, atol=1e-12)
    assert branch_effects(means, tokens) == pytest.approx(branch_effects(sums, tokens), rel=1e-9)
    added = [portrait(model, lambda model=model: model.features(tokens), gradients=False)[0] for model in (sums, means)]
    assert added[1].contributions[-1] > 2 * added[0].contributions[-1]


@pytest.mark.parametrize("scheme", ["pre_norm", "block_attn_res", "peri_norm", "hyper_connections"])
def test_a_branch_of_zeros_has_no_effect(scheme):
    model, tokens = made(scheme)
    with torch.no_grad():
        model.branches[2].matrices()["out"].zero_()
    effects = branch_effects(model, tokens)
    assert effects[2] == pytest.approx(0, abs=1e-14)
    assert min(effects[:2] + effects[3:]) > 1e-6
