"""The stream of Attention Residuals as a value. test_depth_reads.py and test_depth_attention.py have the reads."""

import pytest
import torch

import normlab as nl
from normlab.errors import InputError
from normlab.schemes import Frame, make_sites
from normlab.schemes.depth_stream import Sources, sum_all

FRAME = Frame(6, make_sites(4))


def streams(config):
    """The stream after each write of branch outputs 1, 2, 3, ..."""
    scheme = nl.scheme(config).build(FRAME)
    stream, found = scheme.open(torch.zeros(1, 2, 6)), []
    for site in FRAME.sites:
        _, carry = scheme.read(stream, site)
        stream = scheme.write(stream, torch.full((1, 2, 6), site.index + 1.0), carry, site)
        found.append(stream)
    return scheme, found


def test_blocks_close_into_one_source_each():
    _, found = streams("block_attn_res(blocks=2)")
    assert [len(stream.closed) for stream in found] == [1, 1, 1, 2, 2, 2, 2, 3]
    assert [float(v[0, 0, 0].detach()) for v in found[-1].closed] == [0.0, 1 + 2 + 3 + 4, 5 + 6 + 7 + 8]
    assert found[4].partial is not None
    assert found[-1].partial is None


def test_full_keeps_every_branch():
    _, found = streams("attn_res")
    assert [float(v[0, 0, 0].detach()) for v in found[-1].all] == list(range(9))


@pytest.mark.parametrize("config", ["attn_res", "block_attn_res(blocks=3)"])
def test_sources_alone_are_the_whole_stream(config):
    """A checkpoint may drop what was computed ahead, anywhere: the next read computes it again."""
    scheme, found = streams(config)
    with torch.no_grad():
        scheme.queries.normal_()
    for stream, site in zip(found, FRAME.sites[1:], strict=False):
        fresh = Sources(stream.closed, stream.partial)
        h, _ = scheme.read(fresh, site)
        torch.testing.assert_close(h, scheme.enter(scheme.attend(fresh.all, site.index), site))


def test_a_branch_that_changes_the_shape_is_refused():
    scheme, found = streams("attn_res")
    with pytest.raises(InputError, match=r"branch 3 gave \[1, 1, 6\], but the stream holds sources of \[1, 2, 6\]"):
        scheme.write(found[2], torch.zeros(1, 1, 6), None, FRAME.sites[3])


def test_a_sum_of_sources():
    assert float(sum_all(tuple(torch.tensor(float(n)) for n in range(5)))) == 10.0
