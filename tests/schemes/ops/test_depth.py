"""Keys, mix, merge, one read and RMSNorm as operations of PyTorch: torch's own checks, and graphs that do not grow."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import normlab as nl
from normlab.schemes import depth_kernels
from normlab.schemes.depth_reads import Norm, Query, attend, handed_norm, keys, merge, mix
from normlab.schemes.ops import depth


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def cases(dtype):
    tokens, d, n, queries = 5, 7, 3, 4
    rows = [leaf(tokens, d, dtype=dtype) for _ in range(n)]
    yield depth.rms, (rows[0], leaf(d, dtype=dtype), 1e-6)
    yield depth.keys, (rows[0], leaf(queries, d), 1e-6)
    yield depth.keys, (rows[0], leaf(queries, d), None)
    yield depth.mix, (leaf(tokens, n + 2, queries), [*rows, leaf(tokens, 2, d, dtype=dtype)], 2.0)
    for gain in (None, leaf(d, dtype=dtype)):
        yield depth.merge, (rows[0], leaf(tokens), rows[1], leaf(d), 1e-6, gain, 1e-6)
        yield depth.attend, ([leaf(tokens) for _ in rows], rows, gain, 1e-6, 2.0, 4.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_opcheck(dtype, kernels, monkeypatch):
    """Schema, fake tensors, autograd and dynamic shapes, by torch's own test of operations."""
    monkeypatch.setenv(depth_kernels.ENVIRONMENT, kernels)
    for operation, arguments in cases(dtype):
        torch.library.opcheck(operation.registered, arguments)


def everything(registered, inputs):
    """All operations in a row, as schemes call them or by their registered names."""
    o, b, c, w, g, logits = inputs
    if registered:
        keyed, _ = depth.keys.registered(b, w, 1e-6)
        lse, _, outputs = depth.mix.registered(logits, [o, b, c], 1.0)
        merged, _ = depth.merge.registered(outputs[0], lse[:, 0], b, w[0], 1e-6, g, 1e-5)
        read, _, _ = depth.attend.registered([lse[:, 1], keyed[:, 0]], [outputs[1], c], g, 1e-5, 1.0, 1.0)
        return merged + read + depth.rms.registered(c, g, 1e-5)[0]
    keyed, b = keys(b, w, 1e-6)
    lse, _, outputs, (o, b, c) = mix(logits, [o, b, c])
    merged, _ = merge(outputs[0], lse[:, 0], b, Query(w[0], 1e-6), norm=Norm(g, 1e-5))
    read, (c,) = attend([lse[:, 1], keyed[:, 0]], [outputs[1], c], norm=Norm(g, 1e-5))
    return merged + read + handed_norm(c, Norm(g, 1e-5))[0]


@pytest.mark.parametrize("kernels", ["on", "off"])
def test_registered_operations_are_those_that_schemes_call(kernels, monkeypatch):
    monkeypatch.setenv(depth_kernels.ENVIRONMENT, kernels)
    shapes = [(5, 7)] * 3 + [(4, 7), (7,), (5, 3, 2)]
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found = [everything(registered, inputs) for registered in (False, True)]
    torch.testing.assert_close(*found)
    grads = [torch.autograd.grad(one.square().sum(), inputs) for one in found]
    torch.testing.assert_close(*grads)


def test_a_meta_device_sees_operations_of_ours():
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with torch.device("meta"):
        model = nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=8, depth=6, heads=2, scheme="attn_res"))
        with Watch():
            model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
    for name in ("keys", "mix", "attend"):
        assert {f"depth_{name}", f"depth_{name}_backward"} <= set(seen)


def nodes(scheme, depth_of, *, checkpointing=False):
    """Calls in the graphs of AOTAutograd for each sublayer, forwards and backwards, and the worst gap of a gradient."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = nl.TransformerConfig(vocab_size=16, dim=16, depth=depth_of, heads=2, scheme=scheme)
    model = nl.Transformer(config)
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.arange(16).view(2, 8)
    model.enable_checkpointing(checkpointing)
    model(tokens).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    graphs = []

    def count(graph, _):
        graphs.append(graph.graph)
        return make_boxed_func(graph.forward)

    compiled = torch.compile(model, fullgraph=True, backend=aot_autograd(fw_compiler=count, bw_compiler=count))
    compiled(tokens).square().sum().backward()
    gap = max(
        float((p.grad - wanted).abs().max() / wanted.abs().max().clamp_min(1e-3))
        for p, wanted in zip(model.parameters(), expected, strict=True)
    )
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    ours = {str(node.target) for node in calls if "normlab" in str(node.target)}
    assert ours, "the compiled graph has no operation of ours"
    return len(calls) / (2 * depth_of), gap


def test_a_compiled_graph_grows_with_depth_and_not_faster():
    few, gap = nodes("attn_res", 5)
    more, other = nodes("attn_res", 10)
    assert more <= few * 1.02
    assert more <= 160
    assert max(gap, other) < 1e-4


@pytest.mark.parametrize("scheme", ["attn_res", "block_attn_res"])
def test_fast_reads_under_compile_and_checkpointing(scheme):
    _, gap = nodes(scheme, 3, checkpointing=True)
    assert gap < 1e-4


@pytest.mark.slow  # some twenty processor seconds
def test_full_at_24_layers_compiles():
    per_sublayer, gap = nodes("attn_res", 24)
    assert per_sublayer <= 160
    assert gap < 1e-4
