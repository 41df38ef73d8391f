"""The formulas that kernels are tested against, by hand on a few numbers; test_depth_reads.py has their derivatives."""

import torch

from normlab.schemes.ops import depth_plain as plain


def test_one_read_by_hand():
    logits, sources = (
        [torch.tensor([0.0]), torch.tensor([0.0])],
        [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])],
    )
    h, weights, scale = plain.attend_forward(logits, sources, None, 0.0)
    assert h.tolist() == [[1.0, 2.0]]
    assert weights.tolist() == [[0.5, 0.5]]
    assert scale.tolist() == [1.0]
    normed, _, scale = plain.attend_forward(logits, sources, torch.tensor([1.0, 10.0]), 0.0)
    torch.testing.assert_close(scale, torch.tensor([2.5**-0.5]))
    torch.testing.assert_close(normed, torch.tensor([[1.0, 20.0]]) * scale)


def test_what_came_past_is_added():
    x, gain, dy, past = torch.randn(3, 4), torch.randn(4), torch.randn(3, 4), torch.randn(3, 4)
    _, r = plain.rms_forward(x, gain, 1e-6)
    (alone, dgain), (both, same) = (plain.rms_backward(dy, x, gain, r, through) for through in (None, past))
    torch.testing.assert_close(both, alone + past)
    assert torch.equal(dgain, same)


def test_units_are_taken_apart_and_put_together():
    units = [torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 4, 3)]
    assert [tuple(part.shape) for part in plain.joined(units)] == [(2, 2, 3), (2, 4, 3)]
    assert len(plain.single(units)) == 6
    for one, other in zip(plain.parted(plain.joined(units), units), units, strict=True):
        assert torch.equal(one, other)
    weights = torch.rand(2, 6)
    torch.testing.assert_close(
        plain.weighted_sum(weights, units), (weights[..., None] * torch.cat(plain.joined(units), 1)).sum(1)
    )
