"""Read-outs against closed forms of Gaussian mixtures, and shares that add up."""

import pytest
import torch

import normlab as nl
from normlab.errors import UnsupportedError
from normlab.observe.portrait import walk
from normlab.observe.readout import explained, final_contributions, final_shares, layer_shares, readouts


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [0.5, 1.0, 3.0])
def test_a_sum_of_independent_parts_hides_each_by_its_share(size):
    """From h = s u + w the best linear read-out of u explains s^2 / (s^2 + 1)."""
    u, w = normal(40_000, 8), normal(40_000, 8, seed=1)
    assert explained(size * u + w, u) == pytest.approx(size**2 / (size**2 + 1), abs=0.01)


def test_invertible_maps_hide_nothing_and_noise_shows_nothing():
    u = normal(4_000, 8)
    assert explained(u @ normal(8, 8, seed=2) + 3.0, u) == pytest.approx(1.0, abs=1e-4)
    assert abs(explained(normal(4_000, 8, seed=3), u)) < 0.02


def test_least_squares_of_another_library():
    import numpy

    x, y = normal(200, 5), normal(200, 3, seed=1) + normal(200, 5)[:, :3]
    a = numpy.c_[x[:100].numpy(), numpy.ones(100)]
    fit = numpy.linalg.lstsq(a, y[:100].numpy(), rcond=None)[0]
    missed = ((y[100:].numpy() - numpy.c_[x[100:].numpy(), numpy.ones(100)] @ fit) ** 2).sum()
    total = ((y[100:] - y[100:].mean(0)) ** 2).sum()
    assert explained(x, y, ridge=1e-12) == pytest.approx(1 - missed / float(total), abs=1e-8)


def model_of(scheme, depth=4):
    torch.manual_seed(0)
    config = nl.TransformerConfig(
        vocab_size=64, dim=16, depth=depth, heads=2, scheme=scheme, start="authors", init_std=0.25
    )
    return nl.Transformer(config).double()


def test_at_the_start_attention_residuals_hide_as_much_as_pre_norm():
    """Zero queries: the last state is Pre-Norm's up to its size, so a read-out sees the same. The metric is net of step 0."""
    tokens = torch.randint(64, (32, 16), generator=torch.Generator().manual_seed(1))
    plain, full = model_of("pre_norm"), model_of("attn_res")
    with torch.no_grad():
        for mine, theirs in zip(full.branches.parameters(), plain.branches.parameters(), strict=True):
            mine.copy_(theirs)
        full.embedding.weight.copy_(plain.embedding.weight)
    assert readouts(full, tokens) == pytest.approx(readouts(plain, tokens), abs=1e-5)


def test_planted_silent_layers_can_be_read_out():
    """With all later layers silent the first layer's output is easier to read than among seven others."""
    tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(1))
    model = model_of("pre_norm", depth=8)
    loud = readouts(model, tokens)[0]
    with torch.no_grad():
        for branch in model.branches[2:]:
            (branch.out if hasattr(branch, "qkv") else branch.down).weight.mul_(1e-3)
    assert readouts(model, tokens)[0] > loud + 0.2


def test_shares_by_hand():
    e = torch.eye(3, dtype=torch.float64)
    found = final_shares(torch.stack([2 * e[0], e[1], 2 * e[2]])[None, None])
    assert found.largest == pytest.approx(4 / 9)  # squares 4, 1, 4
    assert found.effective == pytest.approx(25 / 9)  # sizes 2, 1, 2 of 5
    assert found.sources == 3


@pytest.mark.parametrize("scheme", ["pre_norm", "post_norm", "attn_res", "block_attn_res(blocks=2)"])
def test_contributions_of_a_model_add_up_to_the_last_read(scheme):
    tokens = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(1))
    model = model_of(scheme)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    found = final_contributions(model, tokens)
    end = walk(model, lambda: model.features(tokens)).reads[-1]
    assert torch.allclose(found.sum(2), end, atol=1e-10)
    shares = final_shares(found)
    assert shares.sources == 9
    assert shares.largest >= 1 / 9
    assert 1 <= shares.effective <= 9
    embedding = torch.einsum("btd,btd->bt", found[:, :, 0], found.sum(2)) / end.square().sum(-1)
    assert torch.allclose(layer_shares(found, 4).sum(-1) + embedding, torch.ones(2, 8, dtype=torch.float64))


def test_schemes_without_such_a_sum():
    with pytest.raises(UnsupportedError, match="ngpt"):
        final_contributions(model_of("ngpt"), torch.zeros(1, 2, dtype=torch.long))
