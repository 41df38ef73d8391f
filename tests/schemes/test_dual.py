"""test_streams.py has the equations written out; here are limits that follow from them."""

import torch

import normlab as nl
from normlab.schemes import Frame, make_sites

FRAME = Frame(16, make_sites(3))
X = torch.randn(2, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def after(name, branch):
    scheme = nl.scheme(name).build(FRAME).double()
    stream = scheme.open(X)
    for site in FRAME.sites:
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branch(z), carry, site)
    return scheme, stream


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + FRAME.eps).sqrt()


def test_silent_branches_leave_the_normalised_embedding():
    for name, times in (("resi_dual", 2), ("siamese_norm", 1), ("b2t", 1)):
        scheme, stream = after(name, torch.zeros_like)
        found = scheme.close(stream)
        torch.testing.assert_close(found, times * rms(X), rtol=1e-4, atol=1e-4)


def test_the_second_stream_of_resi_dual_is_a_plain_sum():
    _, stream = after("resi_dual", lambda z: torch.full_like(z, 0.5))
    torch.testing.assert_close(stream.second, X + 0.5 * len(FRAME.sites))
    mean_square = stream.first.square().mean(-1)
    torch.testing.assert_close(mean_square, torch.ones_like(mean_square), rtol=1e-4, atol=0)


def test_traffic_counts_the_second_stream():
    def total(name):
        return sum(a.read + a.write for a in nl.scheme(name).traffic(FRAME.sites))

    assert total("resi_dual") == 5.0
    assert total("siamese_norm") == 6.0
    assert total("b2t") == 3.5  # every second branch reads the layer's input again
