"""Reads, writes and Sinkhorn for devices other than CPUs: torch's checks, derivatives, and what a scheme does with them."""

import pytest
import torch

import normlab as nl
from normlab.schemes.depth_reads import Norm
from normlab.schemes.ops import depth
from normlab.schemes.ops import streams_device as device


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_operations_have_shapes_on_the_meta_device():
    x, y, pre, res, gain = leaf(5, 4, 7), leaf(5, 7), leaf(5, 4), leaf(5, 4, 4), leaf(7)
    r = torch.rand(5, dtype=torch.float64)
    for operation, arguments in (
        (device.stream_read, (x, pre, gain, 1e-6)), (device.stream_read_backward, (y, x, pre, gain, r, x)),
        (device.stream_write, (x, y, res, pre)), (device.stream_write, (x, y, None, pre)),
        (device.stream_write_backward, (x, x, y, res, pre)), (device.stream_write_backward, (x, x, y, None, pre)),
        (device.stream_sinkhorn, (res, None, 5, 0.0)), (device.stream_sinkhorn, (res, res, 5, 1e-6)),
    ):  # fmt: skip
        detached = [one.detach() if isinstance(one, torch.Tensor) else one for one in arguments]
        torch.library.opcheck(operation.registered, detached, test_utils=("test_schema", "test_faketensor"))


def test_derivatives():
    x, y, pre, res, gain = leaf(3, 2, 4), leaf(3, 4), leaf(3, 2), leaf(3, 2, 2), leaf(4)
    assert torch.autograd.gradcheck(lambda x, p, g: device.device_read(x, p, Norm(g, 0.1)), (x, pre, gain))
    assert torch.autograd.gradcheck(device.device_write, (x, y, res, pre))
    assert torch.autograd.gradcheck(lambda x, y, p: device.device_write(x, y, None, p), (x, y, pre))
    for eps in (0.0, 1e-3):
        assert torch.autograd.gradcheck(lambda r, eps=eps: device.device_sinkhorn(r, 4, eps), (res,))


@pytest.mark.parametrize("scheme", ["hyper_connections", "hyper_connections(dynamic=false)", "mhc", "independent_hc"])
def test_a_scheme_in_passes_equals_its_own_arithmetic(scheme, monkeypatch):
    """What a GPU would run, run here: the CPU is made one of the devices."""
    monkeypatch.setenv("NORMLAB_KERNELS", "off")
    torch.manual_seed(0)
    model = nl.Transformer(nl.TransformerConfig(vocab_size=13, dim=8, depth=3, heads=2, scheme=scheme)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens, found = torch.arange(26).view(2, 13) % 13, []
    for devices in (set(), {"cpu"}):
        monkeypatch.setattr(depth, "DEVICES", devices)
        logits = model(tokens)
        _, carry = model.scheme.read(model.scheme.open(torch.randn(2, 5, 8).double()), model.sites[0])
        assert (carry.streams is not None) == bool(devices)
        found.append([logits, *torch.autograd.grad(logits.square().sum(), [*model.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
