"""The gated residual's read in one function on CPUs: norms, gates and their mean; the streams are handed on to the write.

    x^_k = N_k(X_k),  z = mean_k sigmoid(u)_k * x^_k,  u = W_u silu(a),  a = W_d x^ / n,  post = 2 sigmoid(W_i x^ / n)

Kept for the backward pass: the streams, which are alive anyway, x^ and u, and numbers per token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_kernels import Kernels, threads_for
from normlab.schemes.ops.depth import Context


class GatedReadOptions(NamedTuple):
    eps: float
    kernels: Kernels


class _GatedRead(torch.autograd.Function):
    """z, post and the streams of X [tokens, n, d], for gains [n, d], W_d [r, n d], W_u [n d, r], W_i [n, n d]"""

    @staticmethod
    def forward(ctx: Context, how: GatedReadOptions, x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (gains, down, up, inject), (eps, kernels) = parameters, how
        tokens, n, d = x.shape
        c, threads = kernels.library, threads_for(x)
        y, r, z = x.new_empty(tokens, n, d), x.new_empty(tokens, n), x.new_empty(tokens, d)
        place = x.data_ptr(), x.stride(0), x.stride(1)
        c.norms_forward(tokens, n, d, *place, gains.data_ptr(), eps, y.data_ptr(), r.data_ptr(), threads)
        flat = y.view(tokens, n * d)
        a = F.linear(flat, down).div_(n)
        u = F.linear(F.silu(a), up)
        c.gated_forward(tokens, n, d, u.data_ptr(), y.data_ptr(), z.data_ptr(), threads)
        post = F.linear(flat, inject).div_(n).sigmoid_().mul_(2)
        ctx.save_for_backward(x, gains, down, up, inject, r, y, a, u, post)
        ctx.kernels = kernels
        ctx.set_materialize_grads(False)
        return z, post.clone(), x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Context, dz: Tensor | None, dpost: Tensor | None, through: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, gains, down, up, inject, r, y, a, u, post = ctx.saved_tensors
        tokens, n, d = x.shape
        c, threads, flat = ctx.kernels.library, threads_for(x), y.view(tokens, n * d)
        dz = x.new_zeros(tokens, d) if dz is None else dz if dz.stride(-1) == 1 else dz.contiguous()
        du, dy = torch.empty_like(u), torch.empty_like(u)
        place = dz.data_ptr(), dz.stride(0), u.data_ptr(), y.data_ptr(), du.data_ptr(), dy.data_ptr()
        c.gated_backward(tokens, n, d, *place, threads)
        gate = torch.sigmoid(a)
        da = (du @ up).mul_(gate * (1 + a * (1 - gate))).div_(n)
        dup, ddown = du.t() @ (a * gate), da.t() @ flat
        dy.addmm_(da, down)
        dlogits = torch.zeros_like(post) if dpost is None else dpost * post * (1 - post / 2) / n
        dy.addmm_(dlogits, inject)
        dx, sums = x.new_empty(tokens, n, d), x.new_empty(threads, 2, n * d)
        past = None if through is None else through.contiguous()
        c.norms_backward(
            *(tokens, n, d, dy.data_ptr(), x.data_ptr(), x.stride(0), x.stride(1), gains.data_ptr(), r.data_ptr()),
            *(None if past is None else past.data_ptr(), dx.data_ptr(), sums.data_ptr(), threads),
        )
        dgains = (sums[0, 0] if threads == 1 else sums[:, 0].sum(0)).view(n, d)
        return None, dx, dgains, ddown, dup, dlogits.t() @ flat


def gated_read(
    x: Tensor, parameters: tuple[Tensor, Tensor, Tensor, Tensor], *, eps: float, kernels: Kernels
) -> tuple[Tensor, Tensor, Tensor]:
    """z [tokens, d], post [tokens, n] and the streams to be written to; parameters: gains, W_d, W_u, W_i."""
    found: tuple[Tensor, Tensor, Tensor] = _GatedRead.apply(GatedReadOptions(eps, kernels), x, *parameters)
    return found
