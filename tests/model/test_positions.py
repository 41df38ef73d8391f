"""RoPE against complex numbers, and its two forms against each other."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jvp, vmap

from normlab.model.positions import rope_table, rotate


def setting(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(2, 7, 3, 10, dtype=dtype, generator=torch.Generator().manual_seed(0))
    cos, sin = rope_table(torch.arange(4, 11), 10, 100.0)
    return x, (cos.to(dtype), sin.to(dtype))


def test_is_multiplication_by_a_phase() -> None:
    x, table = setting()
    pairs = torch.complex(x[..., :5], x[..., 5:])
    angles = torch.arange(4, 11)[:, None] * 100.0 ** -(torch.arange(0, 10, 2, dtype=torch.float64) / 10)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(rotate(x, table), torch.cat((turned.real, turned.imag), -1), rtol=0, atol=1e-5)


def test_derivatives() -> None:
    x, table = setting()
    x = x[:1, :2, :2].requires_grad_()
    small = (table[0][:2], table[1][:2])
    assert torch.autograd.gradcheck(lambda x: rotate(x, small), (x,))
    assert torch.autograd.gradgradcheck(lambda x: rotate(x, small).square(), (x,))


def test_transforms_and_compilers_see_the_same() -> None:
    x, table = setting()
    dy = torch.randn_like(x)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(rotate(leaf, table), leaf, dy)
    found = vmap(grad(lambda x, dy: (rotate(x, table) * dy).sum()))(x, dy)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(jvp(lambda x: rotate(x, table), (x,), (dy,))[1], rotate(dy, table), rtol=0, atol=1e-12)
    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, table), rotate(x, table), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_views_and_types(dtype: torch.dtype) -> None:
    """A slice of the fused projection, turned in the type of x."""
    x, table = setting(dtype)
    wide = torch.cat((x, x), dim=-1)
    assert rotate(x, table).dtype == dtype
    assert torch.equal(rotate(wide[..., 10:], table), rotate(x, table))
