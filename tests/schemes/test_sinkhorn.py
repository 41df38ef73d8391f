import torch

from normlab.schemes.sinkhorn import sinkhorn


def plain(logits, iterations):
    """The same, differentiated step by step."""
    x = logits.exp()
    for _ in range(iterations):
        x = x / x.sum(-2, keepdim=True)
        x = x / x.sum(-1, keepdim=True)
    return x


def test_value_and_gradient_are_those_of_the_plain_iteration():
    logits = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    for iterations in (1, 2, 20):
        found, wanted = sinkhorn(logits, iterations), plain(logits, iterations)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(x, logits, slope)[0] for x in (found, wanted)))


def test_rows_and_columns_sum_to_one_and_equal_logits_share_evenly():
    found = sinkhorn(torch.randn(7, 4, 4, dtype=torch.float64), 200)
    ones = torch.ones(7, 4, dtype=torch.float64)
    torch.testing.assert_close(found.sum(-1), ones)
    torch.testing.assert_close(found.sum(-2), ones)
    torch.testing.assert_close(sinkhorn(torch.full((4, 4), 3.0), 1), torch.full((4, 4), 0.25))


def test_a_permutation_stays_one():
    order = torch.tensor([2, 0, 3, 1])
    wanted = torch.eye(4)[order]
    torch.testing.assert_close(sinkhorn(1000 * wanted, 20), wanted)
