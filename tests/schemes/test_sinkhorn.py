"""Sinkhorn against the log domain and against autograd through every iteration, at sizes where others overflow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab.schemes.sinkhorn import sinkhorn


def in_logarithms(logits, iterations):
    """One logarithm at a time, differentiated by autograd."""
    for _ in range(iterations):
        logits = logits - torch.logsumexp(logits, dim=-2, keepdim=True)
        logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return logits.exp()


def as_shipped(logits, iterations, eps):
    """DeepSeek-V4's steps on comb, the transpose of H_res: rows by softmax, then columns and rows in turn."""
    comb = torch.softmax(logits.transpose(-1, -2), dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb.transpose(-1, -2)


def value_and_gradient(function, logits, weight):
    logits = logits.clone().requires_grad_()
    found = function(logits)
    return found.detach(), torch.autograd.grad((found * weight).sum(), logits)[0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 25), st.lists(st.integers(1, 3), max_size=3), st.floats(0.1, 8.0))
def test_values_and_gradients_equal_the_log_domain(n, iterations, leading, size):
    logits = size * torch.randn(*leading, n, n, dtype=torch.float64)
    weight = torch.randn(*leading, n, n, dtype=torch.float64)
    found = value_and_gradient(lambda x: sinkhorn(x, iterations), logits, weight)
    wanted = value_and_gradient(lambda x: in_logarithms(x, iterations), logits, weight)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-2])
def test_gradient_is_autograd_through_all_iterations_in_float32(eps):
    logits, weight = 3 * torch.randn(64, 4, 4), torch.randn(64, 4, 4)
    found = value_and_gradient(lambda x: sinkhorn(x, 20, eps=eps), logits, weight)
    reference = (lambda x: as_shipped(x, 20, eps)) if eps else (lambda x: in_logarithms(x, 20))
    wanted = value_and_gradient(reference, logits.double(), weight.double())
    assert (found[0] - wanted[0]).abs().max() < 1e-6
    assert (found[1] - wanted[1]).abs().max() < 1e-6
    # The derivative needs every iteration: with the last one alone it is far off.
    short = value_and_gradient(lambda x: in_logarithms(x, 1), logits.double(), weight.double())
    assert (short[1] - wanted[1]).abs().max() > 1e-2


def extreme():
    """Logits up to +-80: random signs, a row far below the others, a column, and a permutation."""
    draws = 80 * (2 * torch.rand(8, 4, 4) - 1)
    row = torch.full((4, 4), 80.0)
    row[1] = torch.tensor([-80.0, -79.0, -78.0, -80.0])
    return torch.cat([draws, torch.stack([row, row.t(), 160 * torch.eye(4).roll(1, 0) - 80])])


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("compiled", [False, True])
def test_finite_and_right_for_logits_up_to_80(eps, compiled):
    logits, weight = extreme(), torch.randn(11, 4, 4)
    run = torch.compile(sinkhorn, backend="aot_eager", fullgraph=True) if compiled else sinkhorn
    torch._dynamo.reset()
    found = value_and_gradient(lambda x: run(x, 20, eps=eps), logits, weight)
    reference = (lambda x: as_shipped(x, 20, eps)) if eps else (lambda x: in_logarithms(x, 20))
    wanted = value_and_gradient(reference, logits.double(), weight.double())
    for got, expected in zip(found, wanted, strict=True):
        assert got.isfinite().all()
        assert (got - expected).abs().max() < 1e-4  # of logits of size 80 float32 keeps 5e-6
    sums = found[0].sum(-1)
    assert (sums - 1).abs().max() < 1e-3  # each row once, also the one that is 160 below the others


def test_functional_transforms_take_the_plain_form_to_the_same_derivative():
    logits, weight = extreme(), torch.randn(11, 4, 4)
    for eps in (0.0, 1e-6):
        wanted = value_and_gradient(lambda x, eps=eps: sinkhorn(x, 20, eps=eps), logits, weight)[1]
        found = torch.func.grad(lambda x, eps=eps: (sinkhorn(x, 20, eps=eps) * weight).sum())(logits)
        assert found.isfinite().all()
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_only_the_logits_are_kept():
    kept = []
    logits = torch.full((2, 4, 4), 500.0).index_fill(-1, torch.tensor([1]), -500.0).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        found = sinkhorn(logits, 20)
    assert sum(kept) == logits.numel()
    found.square().sum().backward()
    assert found.isfinite().all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_derivative(eps):
    logits = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 3, eps=eps), (logits,))


def test_sinkhorn_is_doubly_stochastic_and_does_not_overflow():
    found = sinkhorn(torch.randn(7, 4, 4, dtype=torch.float64), 200)
    torch.testing.assert_close(found.sum(-1), torch.ones(7, 4, dtype=torch.float64))
    torch.testing.assert_close(found.sum(-2), torch.ones(7, 4, dtype=torch.float64))
    assert sinkhorn(torch.full((4, 4), 500.0).fill_diagonal_(-500.0), 20).isfinite().all()
