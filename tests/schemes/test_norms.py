"""Our RMSNorm against torch's, in values and derivatives, under everything that looks into it."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap

from normlab.schemes.norms import RMSNorm, make_norm, rms_norm

EPS = 1e-5
SHAPES = [(3, 7, 48), (5, 1), (2, 3, 4, 16), (33,)]


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(shape, generator=draw, dtype=torch.float64)
    weight = torch.rand(shape[-1], generator=draw, dtype=torch.float64) + 0.5
    dy = torch.randn(shape, generator=draw, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), dy.to(dtype)


def reference(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def derivatives(function, x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    y = function(x, weight, EPS)
    return (y.detach(), *torch.autograd.grad(y, (x, weight), dy))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_equals_torch(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    x, weight, dy = inputs(shape, dtype)
    for ours, theirs in zip(derivatives(rms_norm, x, weight, dy), derivatives(reference, x, weight, dy), strict=True):
        assert ours.dtype == dtype
        scale = max(1.0, theirs.abs().max().item())
        assert (ours - theirs).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_low_precision_keeps_statistics_in_float32(weight_dtype: torch.dtype) -> None:
    """bfloat16 in and out, but as good as the exact result rounded once; F.rms_norm would warn of the mixed types."""
    x, weight, dy = inputs((4, 9, 512), torch.bfloat16)
    weight = weight.detach().to(weight_dtype).requires_grad_()
    exact = derivatives(reference, x.detach().double().requires_grad_(), weight.detach().double().requires_grad_(), dy)
    for ours, best in zip(derivatives(rms_norm, x, weight, dy), exact, strict=True):
        torch.testing.assert_close(ours.double(), best, rtol=2**-8, atol=1e-5)


def test_autocast_leaves_it_exact() -> None:
    """Also with the backward pass inside the autocast region, where matrix products are in bfloat16."""
    x, weight, dy = inputs((4, 9, 64), torch.float32)
    expected = derivatives(rms_norm, x, weight, dy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = derivatives(rms_norm, x, weight, dy)
    for ours, best in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, best)


def test_first_and_second_derivatives() -> None:
    x, weight, _ = inputs((3, 2, 6))
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, EPS), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: rms_norm(x, w, EPS), (x, weight))


def test_noncontiguous_and_expanded_gradients() -> None:
    x, weight, dy = inputs((4, 6, 8))
    turned, dy_turned = x.transpose(0, 1), dy.transpose(0, 1)
    ours = torch.autograd.grad(rms_norm(turned, weight, EPS), (x, weight), dy_turned)
    theirs = torch.autograd.grad(reference(turned, weight), (x, weight), dy_turned)
    ours += torch.autograd.grad(rms_norm(x, weight, EPS).sum(), (x, weight))
    theirs += torch.autograd.grad(reference(x, weight).sum(), (x, weight))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_only_one_argument_wants_a_gradient() -> None:
    x, weight, dy = inputs((3, 8))
    both = torch.autograd.grad(rms_norm(x, weight, EPS), (x, weight), dy)
    assert torch.equal(torch.autograd.grad(rms_norm(x, weight.detach(), EPS), x, dy)[0], both[0])
    assert torch.equal(torch.autograd.grad(rms_norm(x.detach(), weight, EPS), weight, dy)[0], both[1])


def test_function_transforms() -> None:
    """A model of three norms at once (vmap of grad), and forward mode, which has no formula of its own here."""
    x, weight, dy = (t.detach() for t in inputs((3, 5, 8)))
    norm = RMSNorm(8, eps=EPS).double()
    gains = torch.stack([weight, 2 * weight, weight + 1])

    def loss(gain: Tensor, x: Tensor, dy: Tensor) -> Tensor:
        return (functional_call(norm, {"weight": gain}, (x,)) * dy).sum()

    found = vmap(grad(loss))(gains, x, dy)
    for index in range(3):
        gain = gains[index].clone().requires_grad_()
        expected = torch.autograd.grad(rms_norm(x[index], gain, EPS), gain, dy[index])[0]
        torch.testing.assert_close(found[index], expected, rtol=0, atol=1e-12)
    _, ours = jvp(lambda x: rms_norm(x, weight, EPS), (x,), (dy,))
    _, theirs = jvp(lambda x: reference(x, weight), (x,), (dy,))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    with torch.autograd.forward_ad.dual_level():
        dual = rms_norm(torch.autograd.forward_ad.make_dual(x, dy), weight, EPS)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, ours, rtol=0, atol=1e-12)


def test_compiles_without_a_break() -> None:
    norm = RMSNorm(16, eps=EPS).double()
    x, weight, dy = inputs((3, 16))
    norm.weight.data.copy_(weight.detach())
    (eager,) = torch.autograd.grad(norm(x), x, dy)
    (compiled,) = torch.autograd.grad(torch.compile(norm, fullgraph=True, backend="aot_eager")(x), x, dy)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-12)


def test_no_warning_and_empty_batches() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norm = RMSNorm(8, eps=EPS)
        x = torch.zeros(0, 8, requires_grad=True)
        norm(x).sum().backward()
        assert norm.weight.grad is not None
        assert norm.weight.grad.tolist() == [0.0] * 8
        assert norm(torch.zeros(2, 8)).tolist() == [[0.0] * 8] * 2


def test_l2_norm_has_the_length_of_its_gain() -> None:
    norm = make_norm("l2", 16, eps=0.0).double()
    x = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(norm(x).norm(dim=-1), torch.ones(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(norm(x), F.normalize(x, dim=-1), atol=1e-12)
    assert torch.allclose(norm(x) * 4, reference(x, torch.ones(16, dtype=torch.float64), 0.0), atol=1e-12)
