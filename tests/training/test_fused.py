"""Gradients written by hand, against autograd. test_minimal.py has the whole model beside it."""

import pytest
import torch

from normlab.tasks import IGNORE
from normlab.training.fused import MinimalWeights, loss_and_gradients, make_tables, weight_gradients, whole

V, D, EPS = 7, 6, 1e-6


def weights(*, pre, res, gain, tied):
    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64).requires_grad_()

    return MinimalWeights(
        draw(V, D), draw(D) if gain else None, draw(D) if pre else None, draw(3 * D, D), draw(D, D),
        draw(D) if res else None, draw(D), None if tied else draw(V, D),
    )  # fmt: skip


def batch(distinct):
    rows = torch.stack([torch.randperm(V)[:5] for _ in range(3)]) if distinct else torch.randint(V, (3, 5))
    targets = torch.randint(V, (3, 5))
    targets[0, 0] = IGNORE
    return rows, targets


def present(values):
    return [value for value in values if value is not None]


@pytest.mark.parametrize(("pre", "res", "gain", "tied"), [(1, 0, 0, 0), (0, 0, 1, 1), (1, 1, 0, 1), (0, 1, 1, 0)])
def test_every_gradient_is_autograds(pre, res, gain, tied):
    w, (tokens, targets) = weights(pre=pre, res=res, gain=gain, tied=tied), batch(False)
    loss, *found = whole(tokens, targets, None, False, w, 0.4, EPS)
    wanted = torch.autograd.grad(loss, present(w))
    assert len(present(found)) == len(wanted)
    for got, right in zip(present(found), wanted, strict=True):
        torch.testing.assert_close(got, right)


def test_distinct_tokens_are_counted_the_short_way():
    w, (tokens, targets) = weights(pre=1, res=1, gain=0, tied=0), batch(True)
    short, long = (whole(tokens, targets, None, distinct, w, 0.4, EPS) for distinct in (True, False))
    for a, b in zip(present(short), present(long), strict=True):
        torch.testing.assert_close(a, b)


def test_a_law_of_one_token_is_its_target():
    w, (tokens, targets) = weights(pre=1, res=0, gain=0, tied=0), batch(False)
    tables, kept = make_tables(w, 0.4, EPS)
    law = torch.nn.functional.one_hot(targets.flatten().clamp_min(0), V).double()
    pair = [loss_and_gradients(tokens, targets, given, EPS, False, tables) for given in (None, law)]
    for a, b in zip(*pair, strict=True):
        torch.testing.assert_close(a, b)
    assert weight_gradients(w, kept, tables.stream, tuple(pair[0][1:])).head.shape == (V, D)
