"""Run by test_depth_triton.py and test_streams_triton.py in a process of its own: kernels in Triton's interpreter.

The interpreter is chosen by the environment before Triton is imported. Products on tiles (`tl.dot`) are checked in float32
alone: those of bfloat16 are silently wrong in the interpreter.
"""

import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("error")

import torch  # noqa: E402

from normlab.schemes.ops import depth_plain, depth_triton, streams_device, streams_triton  # noqa: E402

SHAPES = [(3, 7), (5, 24), (2, 130), (1, 3)]  # tokens, width: odd, a remainder, more than one chunk
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 3e-3}


def check(found, wanted, dtype):
    if isinstance(wanted, torch.Tensor):
        assert found.shape == wanted.shape, (found.shape, wanted.shape)
        assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
        gap = (found.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp_min(1.0)
        assert gap <= TOLERANCE[dtype], float(gap)
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        check(one, other, dtype)


def twins(name, arguments, dtype, keep=None):
    found, wanted = (getattr(module, name)(*arguments) for module in (depth_triton, depth_plain))
    check(found[:keep], wanted[:keep], dtype)
    return wanted


def depth(dtype, tokens, d):
    def rows(*shape):
        return torch.randn(*shape).to(dtype)

    x, gain, dy, past = rows(tokens, d), rows(d), rows(tokens, d), rows(tokens, d)
    _, r = twins("rms_forward", (x, gain, 1e-5), dtype)
    for through in (None, past):
        twins("rms_backward", (dy, x, gain, r, through), dtype)
    o, lse, query = rows(tokens, d), torch.randn(tokens), torch.randn(d)
    for eps, norm in ((None, None), (None, gain), (1e-5, None), (1e-5, gain)):
        _, stats = twins("merge_forward", (o, lse, x, query, eps, norm, 1e-5), dtype)
        for through in (None, past):
            arguments = (dy, o, x, query, stats, eps, norm, through)
            twins("merge_backward", arguments, dtype, keep=4 if norm is None else 5)
    for queries in (1, 3):
        units, logits = [rows(tokens, d), rows(tokens, d), rows(tokens, 2, d)], torch.randn(tokens, 4, queries)
        whole = float(queries)  # 1: a mean; else a sum
        _, weights, _ = twins("mix_forward", (logits, units, whole), dtype)
        grads, dlse = [rows(tokens, d) for _ in range(queries)], torch.randn(tokens, queries)
        for through in ([None] * 3, [None, past, rows(tokens, 2, d)]):
            twins("mix_backward", (weights, units, grads, dlse, through, whole), dtype)
    for n in (1, 4):
        sources, logits = [rows(tokens, d) for _ in range(n)], [torch.randn(tokens) for _ in range(n)]
        for norm, share in ((None, (1.0, 1.0)), (gain, (1.0, 1.0)), (None, (5.0, 5.0 + n - 1))):
            _, weights, scale = twins("attend_forward", (logits, sources, norm, 1e-5, *share), dtype)
            for through in ([None] * n, [None] * (n - 1) + [past]):
                arguments = (dy, weights, sources, norm, scale, through, *share)
                twins("attend_backward", arguments, dtype, keep=2 if norm is None else 3)
    if dtype == torch.float32:
        for eps, queries in ((None, 1), (1e-5, 5), (1e-5, 70)):
            table, grad = torch.randn(queries, d), torch.randn(tokens, queries)
            logits, r = twins("keys_forward", (x, table, eps), dtype)
            for through in (None, past):
                twins("keys_backward", (grad, x, table, r, logits, eps, through), dtype)


def streams(dtype, tokens, d):
    device, n = streams_device, 4

    def rows(*shape):
        return torch.randn(*shape).to(dtype)

    x, y, gain, grad, past = rows(tokens, n, d), rows(tokens, d), rows(d), rows(tokens, n, d), rows(tokens, n, d)
    pre, post, res = torch.rand(tokens, n), torch.rand(tokens, n), torch.rand(tokens, n, n)
    for one in (x, x[:, :1].expand(tokens, n, d)):  # the embedding, n times
        wanted = device.stream_read.function(one, pre, gain, 1e-5)
        check(streams_triton.read_forward(one, pre, gain, 1e-5), wanted, dtype)
        for through in (None, past):
            arguments = (y, one, pre, gain, wanted[1], through)
            check(streams_triton.read_backward(*arguments), device.stream_read_backward.function(*arguments), dtype)
        check(streams_triton.write_forward(one, y, None, post), device.stream_write.function(one, y, None, post), dtype)
        check(streams_triton.write_forward(one, y, res, post), device.stream_write.function(one, y, res, post), dtype)
        arguments = (grad, one, y, res, post)
        check(streams_triton.write_backward(*arguments), device.stream_write_backward.function(*arguments), dtype)
        arguments = (grad, one, y, None, post)
        _, dy, _, dpost = streams_triton.write_backward(*arguments)
        check((dy, dpost), device.stream_write_backward.function(*arguments)[1::2], dtype)
    if dtype == torch.float32:
        for eps, size in ((0.0, 1.0), (1e-6, 3.0), (0.0, 80.0)):
            logits, grad = size * torch.randn(tokens, n, n), torch.randn(tokens, n, n)
            for given in (None, grad):
                arguments = (logits, given, 5, eps)
                check(streams_triton.sinkhorn(*arguments), device.stream_sinkhorn.function(*arguments), dtype)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for dtype in TOLERANCE:
        for tokens, d in SHAPES if dtype != torch.float16 else SHAPES[:1]:
            {"depth": depth, "streams": streams}[sys.argv[1]](dtype, tokens, d)
    print("equal")
