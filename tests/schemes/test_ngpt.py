"""test_streams.py has the equation written out; here are its limits."""

import pytest
import torch

import normlab as nl
from normlab.schemes import Frame, make_sites

FRAME = Frame(8, make_sites(2))
X = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def written(alpha, y):
    scheme = nl.scheme("ngpt", alpha=alpha).build(FRAME).double()
    return scheme.write(scheme.open(X), y, None, FRAME.sites[0])


def test_a_whole_step_lands_on_the_branch_whatever_its_length():
    y = torch.randn_like(X)
    torch.testing.assert_close(written(1.0, y), unit(y))
    torch.testing.assert_close(written(0.3, y), written(0.3, 100 * y))


def test_the_stream_stays_on_the_sphere_and_a_branch_along_it_does_not_turn_it():
    torch.testing.assert_close(written(0.05, torch.randn_like(X)).norm(dim=-1), torch.ones(2, 3).double())
    torch.testing.assert_close(written(0.7, 5 * X), unit(X))


def test_the_step_is_not_below_zero():
    """The learned step counts by its size: |alpha|."""
    scheme = nl.scheme("ngpt", alpha=0.2).build(FRAME)
    with torch.no_grad():
        scheme.alpha.neg_()
    assert scheme.step_size(FRAME.sites[1]).tolist() == pytest.approx([0.2] * 8)
