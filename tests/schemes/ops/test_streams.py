"""The read and the write of n streams in one piece equal the schemes' own arithmetic, values and gradients."""

import copy
import pickle

import pytest
import torch

import normlab as nl
from normlab.schemes import depth_kernels
from normlab.schemes.ops import streams as ops

pytestmark = pytest.mark.skipif(not depth_kernels.available(), reason="no C compiler here")

CASES = {
    "hyper_connections": {}, "hyper_connections, static": {"dynamic": False}, "hyper_connections, 3": {"streams": 3},
    "mhc": {}, "mhc, shipped": {"eps": 1e-6, "streams": 3}, "mhc, identity": {"initial": "identity"},
    "mhc, single pass": {"single_pass": True}, "independent_hc": {}, "independent_hc, 2": {"streams": 2},
    "gated_residual": {}, "pre_norm": {},
}  # fmt: skip


def model_of(case, dtype, *, dim=24):
    scheme = nl.scheme(case.split(",")[0], **CASES[case])
    torch.manual_seed(0)
    shape = {"vocab_size": 31, "dim": dim, "depth": 3, "heads": 2}
    model = nl.Transformer(nl.TransformerConfig(scheme=scheme, start="authors", **shape)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def outcome(model, monkeypatch, kernels, rows=3):
    monkeypatch.setenv(depth_kernels.ENVIRONMENT, kernels)
    tokens = torch.arange(rows * 17).view(rows, 17) % 31
    model.zero_grad()
    logits = model(tokens)
    (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_both_ways_agree(case, dtype, monkeypatch):
    model, tolerance = model_of(case, dtype), 1e-12 if dtype == torch.float64 else 2e-5
    logits, grads = outcome(model, monkeypatch, "on")
    expected, expected_grads = outcome(model, monkeypatch, "off")
    assert grads.keys() == expected_grads.keys()
    assert (logits - expected).abs().max() <= tolerance
    for name, grad in expected_grads.items():
        assert (grads[name] - grad).abs().max() <= tolerance * grad.abs().max().clamp_min(1e-6), name


@pytest.mark.parametrize("case", ["hyper_connections", "mhc", "independent_hc"])
def test_the_kernels_are_used(case, monkeypatch):
    """Else the comparison above compares a thing with itself."""
    monkeypatch.setenv(depth_kernels.ENVIRONMENT, "on")
    model = model_of(case, torch.float32)
    stream = model.scheme.open(torch.randn(2, 5, 24))
    _, carry = model.scheme.read(stream, model.scheme.frame.sites[0])
    assert carry.streams is not None
    with model.scheme.taped():  # whoever watches gets the plain way
        _, carry = model.scheme.read(stream, model.scheme.frame.sites[0])
    assert carry.streams is None
    norm = model.scheme.pre[0]
    handle = norm.register_forward_hook(lambda *_: None)
    assert model.scheme.read(stream, model.scheme.frame.sites[0])[1].streams is None
    handle.remove()
    assert model.scheme.read(stream, model.scheme.frame.sites[0])[1].streams is not None


def test_threads_do_not_change_the_sums(monkeypatch):
    monkeypatch.setattr(depth_kernels, "SMALL", 1)
    model, before = model_of("mhc", torch.float64), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        logits, grads = outcome(model, monkeypatch, "on")
        torch.set_num_threads(3)
        again, others = outcome(model, monkeypatch, "on")
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(logits, again, rtol=0, atol=1e-13)
    for name, grad in grads.items():
        torch.testing.assert_close(others[name], grad, rtol=1e-11, atol=1e-13)


def test_the_streams_written_to_are_those_given(monkeypatch):
    """A write to other streams than were read takes the ones it is given."""
    monkeypatch.setenv(depth_kernels.ENVIRONMENT, "on")
    model = model_of("mhc", torch.float64)
    scheme, site = model.scheme, model.scheme.frame.sites[0]
    first, second = torch.randn(2, 5, 4, 24, dtype=torch.float64), torch.randn(2, 5, 4, 24, dtype=torch.float64)
    y, carry = scheme.read(first, site)
    assert not torch.equal(scheme.write(second, y, carry, site), scheme.write(first, y, carry, site))


@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_sinkhorn_passes_gradcheck(n, eps):
    logits = (
        2 * torch.randn(19, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    ).requires_grad_()
    kernels = depth_kernels.usable(logits.detach())
    assert torch.autograd.gradcheck(lambda x: ops.kernel_sinkhorn(x, 5, eps, kernels), (logits,))


@pytest.mark.parametrize("size", [20.0, 80.0])
def test_sinkhorn_stays_finite(size):
    generator = torch.Generator().manual_seed(3)
    logits = size * torch.sign(torch.randn(40, 4, 4, generator=generator)) * torch.rand(40, 4, 4, generator=generator)
    logits.requires_grad_()
    balanced = ops.kernel_sinkhorn(logits, 20, 0.0, depth_kernels.usable(logits.detach()))
    assert (balanced.sum(-1) - 1).abs().max() < 1e-5
    (balanced * torch.randn(40, 4, 4, generator=generator)).sum().backward()
    assert logits.grad.isfinite().all()


def test_slices_follow_the_parameter():
    """A cut is renewed after a step, in another mode, and for another tensor; copies make their own."""
    slices, parameter = ops.Slices(), torch.nn.Parameter(torch.arange(6.0).view(3, 2))
    first = slices.of("p", parameter, 1)
    assert slices.of("p", parameter, 1) is first
    first.sum().backward()
    assert parameter.grad.tolist() == [[0, 0], [1, 1], [0, 0]]
    with torch.no_grad():
        parameter.add_(1)
        assert slices.of("p", parameter, 1).tolist() == [3, 4]
    assert slices.of("p", parameter, 1).tolist() == [3, 4]
    assert slices.of("p", parameter, 1).requires_grad
    other = torch.nn.Parameter(torch.zeros(3, 2))
    assert slices.of("p", other, 1).tolist() == [0, 0]
    for copied in (copy.deepcopy(slices), pickle.loads(pickle.dumps(slices))):
        assert copied._cut == {}


def test_a_trained_model_can_be_copied_and_saved(monkeypatch):
    model = model_of("mhc", torch.float32)
    outcome(model, monkeypatch, "on")
    twin = copy.deepcopy(model)
    assert torch.equal(twin(torch.ones(1, 3, dtype=torch.long)), model(torch.ones(1, 3, dtype=torch.long)))
    pickle.dumps(model)
