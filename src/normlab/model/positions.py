"""Positions: rotary, learned, sinusoidal or none. Tables are computed, not stored, so nothing can erase them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normlab.schemes.norms import traced


def rope_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of RoPE (Su et al. 2021), in float32: each [time, 1, head_dim / 2]."""
    powers = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * theta**-powers
    return angles.cos()[:, None], angles.sin()[:, None]


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (x_i, x_{i + head_dim/2}) of [batch, time, heads, head_dim]: the layout of Llama and GPT-NeoX."""
    cos, sin = (t.to(x.dtype) for t in table)
    if not traced():
        return _Rotation.apply(x, cos, sin)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class _Rotation(torch.autograd.Function):
    """The gradient of a rotation is the rotation back. Halves are written in place, without a `cat` either way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        (left, right), (new_left, new_right) = x.chunk(2, dim=-1), y.chunk(2, dim=-1)
        torch.mul(left, cos, out=new_left).addcmul_(right, sin, value=-1)
        torch.mul(right, cos, out=new_right).addcmul_(left, sin)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return _Rotation.apply(dy, cos, -sin), None, None


def sinusoidal(positions: Tensor, dim: int) -> Tensor:
    """Vaswani et al. 2017: sin in the even channels, cos in the odd ones: [time, dim], float32."""
    powers = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    angles = positions.float()[:, None] * 10000.0**-powers
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim]
