"""test_streams.py has the equations written out, test_hyper_fast.py the fast path; here is what follows at the start."""

import pytest
import torch

import normlab as nl
from normlab.schemes import Frame, make_sites

FRAME = Frame(8, make_sites(3))


@pytest.mark.parametrize("name", ["hyper_connections", "mhc"])
def test_all_streams_start_as_the_embedding(name):
    scheme = nl.scheme(name, streams=3).build(FRAME)
    x = torch.randn(2, 4, 8)
    stream = scheme.open(x)
    assert stream.shape == (2, 4, 3, 8)
    assert all(torch.equal(stream[..., k, :], x) for k in range(3))


def test_the_papers_traffic_of_four_streams():
    for name in ("hyper_connections", "mhc"):
        found = nl.scheme(name, streams=4).traffic(FRAME.sites)
        assert sum(a.read + a.write for a in found) == 8 * 4 + 2
        assert sum(a.scalars for a in found) == 2 * 4**2 + 4 * 4


def test_the_growth_law_is_pre_norms_at_the_start():
    assert nl.scheme("hyper_connections", streams=1).growth(FRAME)[:-1] == nl.scheme("pre_norm").growth(FRAME)[:-1]
    for n in (1, 2, 4):
        found = nl.scheme("hyper_connections", streams=n).growth(FRAME)
        assert found[:-1] == pytest.approx([1.0 + i for i in range(6)])
        assert found[-1] == pytest.approx(7.0 * n * n)  # the head reads the sum of n equal streams
