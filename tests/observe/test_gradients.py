"""Gradients by matrix against torch's own backward pass, and the numbers made of them against closed forms."""

import math

import pytest
import torch

import normlab as nl
from normlab.observe.gradients import centre, last_over_first, matrix_gradients, spread


def made(scheme="pre_norm", ffn="swiglu"):
    torch.manual_seed(0)
    config = nl.TransformerConfig(vocab_size=11, dim=16, depth=3, heads=2, scheme=scheme, ffn=ffn)
    return nl.Transformer(config).double(), torch.randint(11, (4, 7))


def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("scheme", ["pre_norm", "post_norm", "attn_res"])
@pytest.mark.parametrize("ffn", ["swiglu", "relu"])
def test_one_batch_is_a_plain_backward_pass(scheme, ffn):
    model, tokens = made(scheme, ffn)
    loss_of(model, tokens).backward()
    found = matrix_gradients(model, [lambda: loss_of(model, tokens)])
    for layer in range(3):
        attention, ffn_branch = model.branches[2 * layer], model.branches[2 * layer + 1]
        assert found.up[layer] == pytest.approx(float(ffn_branch.up.weight.grad.norm()), rel=1e-12)
        assert found.down[layer] == pytest.approx(float(ffn_branch.down.weight.grad.norm()), rel=1e-12)
        both = math.hypot(float(attention.qkv.weight.grad.norm()), float(attention.out.weight.grad.norm()))
        assert found.attention[layer] == pytest.approx(both, rel=1e-12)
        assert found.layers[layer] == pytest.approx(math.hypot(found.up[layer], found.down[layer], both), rel=1e-12)


def test_several_batches_are_a_root_mean_square_and_leave_gradients_alone():
    model, tokens = made()
    single = [matrix_gradients(model, [lambda t=t: loss_of(model, t)]) for t in tokens.split(2)]
    both = matrix_gradients(model, [lambda t=t: loss_of(model, t) for t in tokens.split(2)])
    for layer in range(3):
        expected = math.sqrt(sum(part.up[layer] ** 2 for part in single) / 2)
        assert both.up[layer] == pytest.approx(expected, rel=1e-12)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_planted_slope_is_seen():
    """Scale one layer's matrices up: what is behind the activation gets a smaller share, in the exact proportion."""
    model, tokens = made(ffn="relu")
    before = matrix_gradients(model, [lambda: loss_of(model, tokens)])
    with torch.no_grad():
        model.branches[5].up.weight.mul_(2.0)
        model.branches[5].down.weight.mul_(0.5)  # the function stays: ReLU is homogeneous
    after = matrix_gradients(model, [lambda: loss_of(model, tokens)])
    assert after.up[2] == pytest.approx(before.up[2] / 2, rel=1e-9)
    assert after.down[2] == pytest.approx(before.down[2] * 2, rel=1e-9)
    assert after.up[:2] == pytest.approx(before.up[:2], rel=1e-9)


def test_numbers_of_a_list():
    assert last_over_first([2.0, 5.0, 6.0]) == 3.0
    assert spread([2.0, 5.0, 1.0]) == 5.0
    assert centre([1.0, 1.0, 1.0]) == pytest.approx(0.0)
    assert centre([1.0, 0.0, 0.0]) == -0.5
    assert centre([0.0, 0.0, 2.0]) == 0.5
