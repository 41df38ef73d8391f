import pytest
import torch

import normlab as nl
from normlab.errors import UnsupportedError
from normlab.schemes import Frame, depth_mixing, make_sites

FRAME = Frame(6, make_sites(2))


def mixing(scheme):
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    maps = torch.randn(4, 6, 6, dtype=torch.float64)

    def run():
        stream = scheme.open(x)
        for site in FRAME.sites:
            z, carry = scheme.read(stream, site)
            stream = scheme.write(stream, torch.tanh(z @ maps[site.index]), carry, site)
        return scheme.close(stream)

    return depth_mixing(scheme, run)


def test_pre_norm_adds_everything_with_weight_one():
    found = mixing(nl.scheme("pre_norm").build(FRAME).double())
    assert found.matrix.shape == (2, 3, 5, 5)
    torch.testing.assert_close(found.matrix, torch.ones(5, 5).double().tril().expand(2, 3, 5, 5))
    assert found.error < 1e-14


def test_weights_of_depth_attention_are_a_softmax():
    scheme = nl.scheme("attn_res").build(FRAME).double()
    with torch.no_grad():
        scheme.queries.normal_()
    found = mixing(scheme)
    torch.testing.assert_close(found.matrix.sum(-1), torch.ones(2, 3, 5).double())
    assert (found.matrix >= 0).all()
    assert not found.matrix.triu(1).any()
    assert found.error < 1e-12


def test_what_has_no_matrix_says_why():
    with pytest.raises(UnsupportedError, match="post_norm has no depth-mixing matrix: it normalises the stream itself"):
        mixing(nl.scheme("post_norm").build(FRAME))
    scheme = nl.scheme("attn_res", heads=2).build(FRAME).double()
    with torch.no_grad():
        scheme.queries.normal_()
    with pytest.raises(UnsupportedError, match="its weights differ by channel"):
        mixing(scheme)
