"""One function a sublayer for schemes with n streams, on CPUs (streams.c): coefficients, read and norm; then the write.

    read    y = N(h), h = sum_k pre_k X_k
    write   X'_k = sum_j res_kj X_j + post_k F(y)
    gates   sigmoids (mHC, independent) or tanh (hyper-connections) of products of the normed streams

The read hands the streams on to the write, so that the write's gradient comes back through the read and the two are
added in the same pass. What is kept for the backward pass: the streams, which are alive anyway, and numbers per token.
The schemes have the same arithmetic in PyTorch; second derivatives, torch.func and compilers get that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from normlab.schemes.depth_kernels import Kernels, threads_for, usable
from normlab.schemes.norms import RMSNorm, traced, watched
from normlab.schemes.ops.depth import Context

WIDE = 16  # as in streams.c


def kernels_for(norm: nn.Module, *tensors: Tensor) -> Kernels | None:
    """The kernels, if the norm is a plain RMSNorm that nobody watches and all tensors suit them."""
    if type(norm) is not RMSNorm or watched(norm) or traced():
        return None
    return usable(*tensors, norm.weight)


@dataclass(frozen=True)
class Gates:
    """sigmoid(alpha z + b): mHC's (size 2, Sinkhorn on the rest) and independent hyper-connections' (no rest)."""

    pre_eps: float = 0.0
    size: float = 2.0
    post_eps: float = 0.0
    iterations: int = 0
    norm_eps: float = 1e-6  # of the streams' norm in front of the product


class Sigmoids(NamedTuple):
    """How a read with sigmoids is done: its gates, the eps of the branch's norm, the kernels."""

    gates: Gates
    eps: float
    kernels: Kernels


class Tanhs(NamedTuple):
    """How a read with tanh is done: the eps of the streams' norm and of the branch's, the kernels."""

    norm_eps: float
    eps: float
    kernels: Kernels


def _streams(x: Tensor) -> tuple[int, int, int]:
    """Pointer and strides of [tokens, n, d]."""
    return x.data_ptr(), x.stride(0), x.stride(1)


def _rows(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.stride(0)


def _suits(x: Tensor) -> Tensor:
    """The numbers of a row side by side; expanded streams (the embedding, n times) stay as they are."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Rest:
    """The norm's half of a read, kept for its backward pass: the pieces that both kinds of gates share."""

    @staticmethod
    def read(kernels: Kernels, x: Tensor, pre: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        tokens, n, d = x.shape
        y, r = x.new_empty(tokens, d), x.new_empty(tokens)
        kernels.library.read_forward(
            *(tokens, n, d, *_streams(x), pre.data_ptr(), pre.stride(0) if pre.dim() == 2 else 0, gain.data_ptr(), eps),
            *(y.data_ptr(), r.data_ptr(), threads_for(x)),
        )
        return y, r

    @staticmethod
    def back(
        kernels: Kernels, dy: Tensor, x: Tensor, pre: Tensor, gain: Tensor, r: Tensor, through: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the streams, of pre (a row per token) and of the norm's gain."""
        tokens, n, d = x.shape
        threads = threads_for(x)
        dx, dpre, sums = x.new_empty(tokens, n, d), x.new_empty(tokens, n), x.new_empty(threads, 4, d)
        kernels.library.read_backward(
            *(tokens, n, d, *_rows(dy), *_streams(x), pre.data_ptr(), pre.stride(0) if pre.dim() == 2 else 0),
            *(gain.data_ptr(), r.data_ptr(), None if through is None else through.data_ptr(), dx.data_ptr()),
            *(dpre.data_ptr(), sums.data_ptr(), sums.data_ptr() + 2 * threads * d * sums.element_size(), threads),
        )
        return dx, dpre, _total(sums.view(2, threads, 2, d)[0])


def _total(sums: Tensor) -> Tensor:
    """[threads, 2, size] -> [size]"""
    return sums[0, 0] if len(sums) == 1 else sums[:, 0].sum(0)


def _whole(grad: Tensor | None, like: Tensor) -> Tensor:
    return like.new_zeros(like.shape) if grad is None else grad.contiguous()


class _StaticRead(torch.autograd.Function):
    """y = N(sum_k pre_k X_k) for given weights [tokens, n] or [n]; also hands the streams on."""

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, pre: Tensor, gain: Tensor, eps: float, kernels: Kernels
    ) -> tuple[Tensor, Tensor]:
        y, r = Rest.read(kernels, x, pre, gain, eps)
        ctx.save_for_backward(x, pre, gain, r)
        ctx.kernels = kernels
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, dy: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, pre, gain, r = ctx.saved_tensors
        dy = x.new_zeros(len(x), x.shape[-1]) if dy is None else _suits(dy)
        through = None if through is None else through.contiguous()
        dx, dpre, dgain = Rest.back(ctx.kernels, dy, x, pre, gain, r, through)
        return dx, dpre if pre.dim() == 2 else dpre.sum(0), dgain, None, None


class _SigmoidRead(torch.autograd.Function):
    """z = RMSNorm(vec X) W; pre, post, res from alpha z + b; y = N(sum_k pre_k X_k)"""

    @staticmethod
    def forward(ctx: Context, how: Sigmoids, x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        (project, alpha, bias, gain), (gates, eps, kernels) = parameters, how
        tokens, n, d = x.shape
        m, c, threads = project.shape[1], kernels.library, threads_for(x)
        flat = x.reshape(tokens, n * d)
        z, r = flat @ project, x.new_empty(tokens)
        c.inverse_rms(tokens, n * d, *_rows(flat), gates.norm_eps, r.data_ptr(), threads)
        pre, post, logits = x.new_empty(tokens, n), x.new_empty(tokens, n), x.new_empty(tokens, m - 2 * n)
        c.gates_forward(
            *(tokens, n, m, z.data_ptr(), r.data_ptr(), alpha.data_ptr(), bias.data_ptr()),
            *(gates.pre_eps, gates.size, gates.post_eps, pre.data_ptr(), post.data_ptr(), logits.data_ptr(), threads),
        )
        y, inner = Rest.read(kernels, x, pre, gain, eps)
        ctx.save_for_backward(x, project, alpha, gain, z, r, pre, post, logits, inner)
        ctx.kernels, ctx.gates = kernels, gates
        ctx.set_materialize_grads(False)
        if m == 2 * n:
            return y, x.view_as(x), post
        res, room = x.new_empty(tokens, n, n), x.new_empty(threads, 3 * n * n * WIDE)
        c.sinkhorn_forward(
            *(tokens, n, gates.iterations, logits.data_ptr(), n * n, gates.pre_eps, res.data_ptr(), room.data_ptr()),
            threads,
        )
        return y, x.view_as(x), post, res

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Context, dy: Tensor | None, through: Tensor | None, dpost: Tensor | None, dres: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        x, project, alpha, gain, z, r, pre, post, logits, inner = ctx.saved_tensors
        gates: Gates = ctx.gates
        tokens, n, d = x.shape
        m, c, threads = z.shape[1], ctx.kernels.library, threads_for(x)
        dy = x.new_zeros(tokens, d) if dy is None else _suits(dy)
        through = None if through is None else through.contiguous()
        dx, dpre, dgain = Rest.back(ctx.kernels, dy, x, pre, gain, inner, through)
        dpost = _whole(dpost, post)
        dlogits = logits
        if m > 2 * n:
            dlogits, room = torch.empty_like(logits), x.new_empty(threads, (2 * gates.iterations + 2) * n * n * WIDE)
            dres = x.new_zeros(tokens, n, n) if dres is None else dres.contiguous()
            c.sinkhorn_backward(
                *(tokens, n, gates.iterations, logits.data_ptr(), n * n, gates.pre_eps, dres.data_ptr()),
                *(*_rows(dlogits), room.data_ptr(), threads),
            )
        draw, along, sums = torch.empty_like(z), torch.empty_like(r), x.new_empty(threads, 2, m + 3)
        c.gates_backward(
            *(tokens, n, m, n * d, z.data_ptr(), r.data_ptr(), alpha.data_ptr()),
            *(gates.pre_eps, gates.size, gates.post_eps, pre.data_ptr(), post.data_ptr(), dpre.data_ptr()),
            *(dpost.data_ptr(), dlogits.data_ptr(), draw.data_ptr(), along.data_ptr(), sums.data_ptr(), threads),
        )
        c.add_along(tokens, n, d, *_streams(x), along.data_ptr(), 1, 0, dx.data_ptr(), threads)
        dx.view(tokens, n * d).addmm_(draw, project.t())
        dproject = x.reshape(tokens, n * d).t() @ draw
        total = _total(sums)
        return None, dx, dproject, total[m : m + len(alpha)], total[:m], dgain


class _TanhRead(torch.autograd.Function):
    """z = RMSNorm(X) (g W); [pre | res^T] = mix + s_0 tanh(z), post = beta + s_1 tanh(z); y = N(sum_k pre_k X_k)"""

    @staticmethod
    def forward(ctx: Context, how: Tanhs, x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        (key_gain, project, mix, beta, scale, gain), (norm_eps, eps, kernels) = parameters, how
        tokens, n, d = x.shape
        c, threads = kernels.library, threads_for(x)
        flat, folded = x.reshape(tokens * n, d), key_gain[:, None] * project
        z, r = flat @ folded, x.new_empty(tokens * n)
        c.inverse_rms(tokens * n, d, *_rows(flat), norm_eps, r.data_ptr(), threads)
        pre, post, res = x.new_empty(tokens, n), x.new_empty(tokens, n), x.new_empty(tokens, n, n)
        c.tanh_forward(
            *(tokens, n, z.data_ptr(), r.data_ptr(), mix.data_ptr(), beta.data_ptr(), scale.data_ptr()),
            *(pre.data_ptr(), post.data_ptr(), res.data_ptr(), threads),
        )
        y, inner = Rest.read(kernels, x, pre, gain, eps)
        ctx.save_for_backward(x, key_gain, project, scale, gain, z, r, pre, inner)
        ctx.kernels = kernels
        ctx.set_materialize_grads(False)
        return y, x.view_as(x), post, res

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Context, dy: Tensor | None, through: Tensor | None, dpost: Tensor | None, dres: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, key_gain, project, scale, gain, z, r, pre, inner = ctx.saved_tensors
        tokens, n, d = x.shape
        c, threads, width = ctx.kernels.library, threads_for(x), n * (n + 2)
        dy = x.new_zeros(tokens, d) if dy is None else _suits(dy)
        through = None if through is None else through.contiguous()
        dx, dpre, dgain = Rest.back(ctx.kernels, dy, x, pre, gain, inner, through)
        dpost = _whole(dpost, pre)
        dres = x.new_zeros(tokens, n, n) if dres is None else dres.contiguous()
        draw, along, sums = torch.empty_like(z), torch.empty_like(r), x.new_empty(threads, 2, width + 2)
        c.tanh_backward(
            *(tokens, n, d, z.data_ptr(), r.data_ptr(), scale.data_ptr(), dpre.data_ptr(), dpost.data_ptr()),
            *(dres.data_ptr(), draw.data_ptr(), along.data_ptr(), sums.data_ptr(), threads),
        )
        c.add_along(tokens, n, d, *_streams(x), along.data_ptr(), n, 1, dx.data_ptr(), threads)
        dx.view(tokens * n, d).addmm_(draw, (key_gain[:, None] * project).t())
        dfolded = x.reshape(tokens * n, d).t() @ draw
        total = _total(sums)
        by_stream = total[:width].view(n, n + 2)
        dkey = (dfolded * project).sum(1)
        dproject = dfolded * key_gain[:, None]
        return None, dx, dkey, dproject, by_stream[:, :-1], by_stream[:, -1], total[width:], dgain


class _WriteInC(torch.autograd.Function):
    """X'_k = sum_j res_kj X_j + post_k y; weights [tokens, ...] or the same for every token"""

    @staticmethod
    def forward(ctx: Context, x: Tensor, y: Tensor, res: Tensor, post: Tensor, kernels: Kernels) -> Tensor:
        tokens, n, d = x.shape
        out = x.new_empty(tokens, n, d)
        kernels.library.write_forward(
            *(tokens, n, d, *_streams(x), *_rows(y), res.data_ptr(), n * n if res.dim() == 3 else 0),
            *(post.data_ptr(), n if post.dim() == 2 else 0, out.data_ptr(), threads_for(x)),
        )
        ctx.save_for_backward(x, y, res, post)
        ctx.kernels = kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, y, res, post = ctx.saved_tensors
        tokens, n, d = x.shape
        grad = grad.contiguous()
        dx, dy = x.new_empty(tokens, n, d), x.new_empty(tokens, d)
        dres, dpost = x.new_empty(tokens, n, n), x.new_empty(tokens, n)
        ctx.kernels.library.write_backward(
            *(tokens, n, d, grad.data_ptr(), *_streams(x), *_rows(y), res.data_ptr(), n * n if res.dim() == 3 else 0),
            *(post.data_ptr(), n if post.dim() == 2 else 0, dx.data_ptr(), dy.data_ptr(), dres.data_ptr()),
            *(dpost.data_ptr(), threads_for(x)),
        )
        return dx, dy, dres if res.dim() == 3 else dres.sum(0), dpost if post.dim() == 2 else dpost.sum(0), None


class _Inject(torch.autograd.Function):
    """X'_k = X_k + post_k y"""

    @staticmethod
    def forward(ctx: Context, x: Tensor, y: Tensor, post: Tensor, kernels: Kernels) -> Tensor:
        tokens, n, d = x.shape
        out = x.new_empty(tokens, n, d)
        kernels.library.inject_forward(
            *(tokens, n, d, *_streams(x), *_rows(y), post.data_ptr(), out.data_ptr(), threads_for(x))
        )
        ctx.save_for_backward(y, post)
        ctx.kernels = kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, post = ctx.saved_tensors
        grad = grad.contiguous()
        tokens, n, d = grad.shape
        dy, dpost = y.new_empty(tokens, d), y.new_empty(tokens, n)
        ctx.kernels.library.inject_backward(
            *(tokens, n, d, grad.data_ptr(), *_rows(y), post.data_ptr(), dy.data_ptr(), dpost.data_ptr()),
            threads_for(grad),
        )
        return grad, dy, dpost, None


class _SinkhornInC(torch.autograd.Function):
    """[tokens, n, n] -> doubly stochastic; sinkhorn.py has the derivation"""

    @staticmethod
    def forward(ctx: Context, logits: Tensor, iterations: int, eps: float, kernels: Kernels) -> Tensor:
        tokens, n, _ = logits.shape
        threads = threads_for(logits)
        out, room = torch.empty_like(logits), logits.new_empty(threads, 3 * n * n * WIDE)
        kernels.library.sinkhorn_forward(
            *(tokens, n, iterations, logits.data_ptr(), n * n, eps, out.data_ptr(), room.data_ptr(), threads)
        )
        ctx.save_for_backward(logits)
        ctx.iterations, ctx.eps, ctx.kernels = iterations, eps, kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        tokens, n, _ = logits.shape
        threads, steps = threads_for(logits), 2 * ctx.iterations
        dlogits, room = torch.empty_like(logits), logits.new_empty(threads, (steps + 2) * n * n * WIDE)
        grad = grad.contiguous()
        ctx.kernels.library.sinkhorn_backward(
            *(tokens, n, ctx.iterations, logits.data_ptr(), n * n, ctx.eps, grad.data_ptr(), dlogits.data_ptr(), n * n),
            *(room.data_ptr(), threads),
        )
        return dlogits, None, None, None


def kernel_sinkhorn(logits: Tensor, iterations: int, eps: float, kernels: Kernels) -> Tensor:
    found: Tensor = _SinkhornInC.apply(logits, iterations, eps, kernels)
    return found


def read(x: Tensor, pre: Tensor, norm: RMSNorm, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """y, and the streams to be written to."""
    found: tuple[Tensor, Tensor] = _StaticRead.apply(x, pre.contiguous(), norm.weight, norm.eps, kernels)
    return found


def sigmoid_read(
    x: Tensor, project: Tensor, alpha: Tensor, bias: Tensor, *, norm: RMSNorm, gates: Gates, kernels: Kernels
) -> tuple[Tensor, ...]:
    """y, the streams to be written to, post, and res unless the streams are not mixed."""
    found: tuple[Tensor, ...] = _SigmoidRead.apply(
        Sigmoids(gates, norm.eps, kernels), x, project, alpha, bias, norm.weight
    )
    return found


def tanh_read(
    x: Tensor, parameters: tuple[Tensor, ...], *, norm: RMSNorm, norm_eps: float, kernels: Kernels
) -> tuple[Tensor, ...]:
    """y, the streams to be written to, post and res; parameters: the key's gain, W, mix, beta, s."""
    found: tuple[Tensor, ...] = _TanhRead.apply(Tanhs(norm_eps, norm.eps, kernels), x, *parameters, norm.weight)
    return found


def write(x: Tensor, y: Tensor, res: Tensor | None, post: Tensor, kernels: Kernels) -> Tensor:
    """res X + post (x) y; without res, X + post (x) y."""
    y = _suits(y)
    found: Tensor
    if res is None:
        found = _Inject.apply(x, y, post.contiguous(), kernels)
    else:
        found = _WriteInC.apply(x, y, res.contiguous(), post.contiguous(), kernels)
    return found


class Slices:
    """A parameter [branches, ...] cut once for all branches of a step.

    Indexing it at every branch makes a gradient of its whole size each time, and adds them up.
    """

    def __init__(self) -> None:
        self._cut: dict[str, tuple[Tensor, int, tuple[bool, bool], tuple[Tensor, ...]]] = {}

    def of(self, name: str, parameter: Tensor, index: int) -> Tensor:
        mode = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        known = self._cut.get(name)
        version = 0 if parameter.is_inference() else parameter._version
        if known is None or known[0] is not parameter or known[1] != version or known[2] != mode:
            known = self._cut[name] = (parameter, version, mode, parameter.unbind(0))
        return known[3][index]

    def __reduce__(self) -> tuple[type[Slices], tuple[()]]:
        return Slices, ()  # a copy cuts its own
