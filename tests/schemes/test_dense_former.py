"""test_streams.py has the equation written out; here is what lies around it."""

import pytest
import torch

import normlab as nl
from normlab.schemes import Frame, make_sites

FRAME = Frame(6, make_sites(4))


@pytest.mark.parametrize(
    ("dilation", "period", "expected"), [(1, 1, 2 + 3 + 4 + 5), (2, 1, 1 + 2 + 2 + 3), (1, 2, 3 + 5)]
)
def test_the_sources_of_all_averages_are_counted(dilation, period, expected):
    config = nl.scheme("dense_former", dilation=dilation, period=period)
    built = config.build(FRAME)
    assert config.averages(FRAME.sites) == sum(weights.numel() for weights in built.alpha.values()) == expected
    assert config.mixing_flops(FRAME) == 6 * (8 + 2 * expected)


def test_the_gradient_of_an_average_is_that_of_the_plain_sum():
    built = nl.scheme("dense_former").build(FRAME).double()
    outputs = [torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    weights = built.alpha["3"]
    with torch.no_grad():
        weights.normal_()
    slope = torch.randn(2, 3, 6, dtype=torch.float64)
    plain = sum(w * y for w, y in zip(weights, outputs, strict=True))
    found = built.mix(tuple(outputs), 3)
    torch.testing.assert_close(found, plain)
    for got, wanted in zip(*(torch.autograd.grad(x, [weights, *outputs], slope) for x in (found, plain)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_it_starts_as_pre_norm():
    x, y = torch.randn(2, 1, 3, 6)
    built, plain = (nl.scheme(name).build(FRAME) for name in ("dense_former", "pre_norm"))
    streams = [scheme.open(x) for scheme in (built, plain)]
    for site in FRAME.sites:
        streams = [s.write(at, (site.index + 1) * y, None, site) for s, at in zip((built, plain), streams, strict=True)]
    torch.testing.assert_close(built.close(streams[0]), plain.close(streams[1]))
