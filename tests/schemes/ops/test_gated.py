"""The gated residual's read in one function: its derivatives, and where it stays out. test_streams.py has whole models."""

import pytest
import torch

import normlab as nl
from normlab.schemes import depth_kernels
from normlab.schemes.ops.gated import gated_read

pytestmark = pytest.mark.skipif(not depth_kernels.available(), reason="no C compiler here")


def test_derivatives():
    def leaf(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    n, d, rank = 3, 4, 2
    parameters = leaf(n, d), leaf(rank, n * d), leaf(n * d, rank), leaf(n, n * d)
    kernels = depth_kernels.usable(torch.zeros(1, 1, dtype=torch.float64))
    assert torch.autograd.gradcheck(
        lambda x, *given: gated_read(x, given, eps=0.1, kernels=kernels), (leaf(5, n, d), *parameters)
    )


def test_the_kernels_are_used_where_nobody_looks():
    scheme = nl.Transformer(nl.TransformerConfig(vocab_size=7, dim=8, depth=2, heads=2, scheme="gated_residual")).scheme
    stream, site = scheme.open(torch.randn(2, 5, 8)), scheme.frame.sites[0]
    assert scheme.read(stream, site)[1].streams is not None
    with scheme.taped():
        assert scheme.read(stream, site)[1].streams is None
    handle = scheme.norms[0][1].register_forward_hook(lambda *_: None)
    assert scheme.read(stream, site)[1].streams is None
    handle.remove()
    y, carry = scheme.read(stream, site)
    other = torch.randn_like(stream)
    assert not torch.equal(scheme.write(other, y, carry, site), scheme.write(stream, y, carry, site))
