"""Fast reads over depth equal the reference, forwards and backwards, for every shape; their derivatives by gradcheck."""

import copy
import os
from functools import partial

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normlab as nl
from normlab.errors import InputError
from normlab.schemes import Frame, depth_kernels, depth_reads, make_sites
from normlab.schemes.depth_reads import Norm, Query, attend, handed_norm, keys, merge, mix
from normlab.schemes.depth_stream import AHEAD, Sources
from normlab.schemes.norms import Scale
from normlab.schemes.ops.depth_plain import weighted_sum


@pytest.fixture(scope="module", params=["C", "PyTorch"], autouse=True)
def kernels(request):
    """Everything here holds with the C kernels and without."""
    before = os.environ.get(depth_kernels.ENVIRONMENT)
    os.environ[depth_kernels.ENVIRONMENT] = "on" if request.param == "C" else "off"
    yield request.param
    os.environ.pop(depth_kernels.ENVIRONMENT)
    if before is not None:
        os.environ[depth_kernels.ENVIRONMENT] = before


class Branch(nn.Module):
    """A small nonlinear branch, so that every gradient is generic."""

    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def build(config, *, depth, dim, dtype, norm="rmsnorm", seed=0, spread=0.5):
    """A scheme with random queries and gains, and branches for its sites."""
    torch.manual_seed(seed)
    scheme = config.build(Frame(dim, make_sites(depth), norm=norm)).to(dtype)
    branches = nn.ModuleList(Branch(dim) for _ in scheme.frame.sites).to(dtype)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return scheme, branches


def run(scheme, branches, x, *, bare=False):
    """`bare` throws away all that was computed ahead, as a pipeline stage does."""
    stream = scheme.open(x)
    for site, branch in zip(scheme.frame.sites, branches, strict=True):
        if bare:
            stream = Sources(stream.closed, stream.partial)
        z, carry = scheme.read(stream, site)
        stream = scheme.write(stream, branch(z), carry, site)
    return scheme.close(stream)


def gradients(scheme, branches, x, forward=run):
    x = x.clone().requires_grad_()
    y = forward(scheme, branches, x)
    torch.manual_seed(7)
    parameters = [*scheme.parameters(), *branches.parameters()]
    found = torch.autograd.grad(y, [x, *parameters], torch.randn_like(y), allow_unused=True)
    return [y.detach(), *(torch.zeros(1) if g is None else g for g in found)]


def assert_equal(one, other, tolerance):
    for a, b in zip(one, other, strict=True):
        scale = max(1.0, float(b.abs().max()))
        assert float((a - b).abs().max()) <= tolerance * scale


def compare(options, *, dtype, tolerance, forward=run, **shape):
    batch, time = shape.pop("batch", 2), shape.pop("time", 3)
    name = options.pop("name")
    fast, branches = build(nl.scheme(name, **options), dtype=dtype, **shape)
    plain, _ = build(nl.scheme(name, **options, read="reference"), dtype=dtype, **shape)
    plain.load_state_dict(fast.state_dict())
    x = torch.randn(batch, time, shape["dim"], dtype=dtype)
    assert_equal(gradients(fast, branches, x, forward), gradients(plain, branches, x), tolerance)


@st.composite
def cases(draw):
    depth = draw(st.integers(1, 11))
    options = {"name": draw(st.sampled_from(["attn_res", "block_attn_res"]))}
    if options["name"] == "block_attn_res":  # odd sizes, remainders, one block, one branch per block
        options[draw(st.sampled_from(["blocks", "block_size"]))] = draw(st.integers(1, 2 * depth))
    options["key_norm"] = draw(st.booleans())
    options["recompute"] = draw(st.booleans())
    options["output_read"] = draw(st.booleans())
    options["inner"] = draw(st.sampled_from(["pre_norm", "peri_norm", "res_norm"]))
    shape = {"depth": depth, "dim": draw(st.integers(1, 9)), "seed": draw(st.integers(0, 99))}
    shape |= {"batch": draw(st.integers(1, 3)), "time": draw(st.integers(1, 4))}
    shape["norm"] = draw(st.sampled_from(["rmsnorm", "layernorm"]))
    return options, shape


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_fast_equals_reference_in_float64(case):
    options, shape = case
    compare(dict(options), dtype=torch.float64, tolerance=1e-9 if shape["dim"] < 3 else 1e-12, **shape)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cases().filter(lambda case: case[1]["dim"] > 2))
def test_fast_equals_reference_in_float32(case):
    """To 1e-6, or where depth amplifies rounding, as closely as the reference itself equals float64."""
    options, shape = dict(case[0]), dict(case[1], spread=0.1)
    check_float32(options, shape)


@pytest.mark.parametrize("name", ["attn_res", "block_attn_res"])
def test_a_usual_shape_in_float32(name):
    check_float32({"name": name}, {"depth": 12, "dim": 64, "batch": 2, "time": 16, "spread": 0.1})


def check_float32(options, shape):
    x = torch.randn(shape.pop("batch"), shape.pop("time"), shape["dim"])
    fast, branches = build(nl.scheme(**options), dtype=torch.float32, **shape)
    plain, _ = build(nl.scheme(**options, read="reference"), dtype=torch.float32, **shape)
    plain.load_state_dict(fast.state_dict())
    ours, theirs = gradients(fast, branches, x), gradients(plain, branches, x)
    exact = gradients(copy.deepcopy(plain).double(), copy.deepcopy(branches).double(), x.double())
    floor = max(gap(b, c) for b, c in zip(theirs, exact, strict=True))
    assert max(gap(a, b) for a, b in zip(ours, theirs, strict=True)) <= max(1e-6, 4 * floor)


def gap(a, b):
    return float((a.double() - b.double()).abs().max()) / max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", ["attn_res", "block_attn_res"])
def test_half_precision_keeps_statistics_in_float32(name):
    options = {"name": name, "read": "fast"}
    fast, branches = build(nl.scheme(**options), depth=6, dim=32, dtype=torch.float32)
    x = torch.randn(2, 5, 32)
    exact = run(fast, branches, x)
    half = run(fast.bfloat16(), branches.bfloat16(), x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.2


@pytest.mark.parametrize("name", ["attn_res", "block_attn_res"])
def test_autocast_leaves_the_reads_alone(name):
    fast, branches = build(nl.scheme(name), depth=5, dim=16, dtype=torch.float32)
    plain, _ = build(nl.scheme(name, read="reference"), depth=5, dim=16, dtype=torch.float32)
    plain.load_state_dict(fast.state_dict())
    x = torch.randn(2, 3, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one, other = gradients(fast, branches, x), gradients(plain, branches, x)
    assert_equal(one, other, 0.05)
    v, queries = torch.randn(4, 16), torch.randn(3, 16, requires_grad=True)
    exact = torch.autograd.grad(keys(v, queries, 1e-6)[0].square().sum(), queries)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with depth_reads.full_precision(v.device):
            logits = keys(v, queries, 1e-6)[0].square().sum()
        inside = torch.autograd.grad(logits, queries)
    assert_equal(inside, exact, 1e-6)


@pytest.mark.parametrize("name", ["attn_res", "block_attn_res"])
@pytest.mark.parametrize("shape", [(20_000, 3, 8), (1, 3, 8000), (3, 8)])
def test_a_branch_of_another_shape_is_refused(name, shape):
    scheme, _ = build(nl.scheme(name), depth=3, dim=8, dtype=torch.float32)
    stream = scheme.open(torch.randn(1, 3, 8))
    _, carry = scheme.read(stream, scheme.frame.sites[0])
    with pytest.raises(InputError, match=r"branch 0 gave .* in the shape that it was given"):
        scheme.write(stream, torch.randn(shape), carry, scheme.frame.sites[0])


@pytest.mark.parametrize("options", [{"name": "attn_res"}, {"name": "block_attn_res", "block_size": 5}])
def test_a_stream_without_its_caches_reads_the_same(options):
    compare(dict(options), dtype=torch.float64, tolerance=1e-11, forward=partial(run, bare=True), depth=7, dim=5)


def test_streams_are_values():
    """A read or a write from an old stream gives the old result: nothing was changed in place."""
    for name in ("attn_res", "block_attn_res"):
        scheme, branches = build(nl.scheme(name), depth=6, dim=4, dtype=torch.float64)
        streams, seen = [scheme.open(torch.randn(1, 2, 4, dtype=torch.float64))], []
        for site, branch in zip(scheme.frame.sites, branches, strict=True):
            z, carry = scheme.read(streams[-1], site)
            seen.append(z.detach().clone())
            streams.append(scheme.write(streams[-1], branch(z), carry, site))
        for site, stream, z in zip(scheme.frame.sites, streams, seen, strict=False):
            assert torch.equal(scheme.read(stream, site)[0], z)


@pytest.mark.parametrize("fork", range(8))
def test_a_stream_that_is_continued_twice_has_both_gradients(fork):
    """Sources and gradients are laid side by side in shared buffers: a second continuation must not write there."""
    found = []
    for read in ("fast", "reference"):
        config = nl.scheme("block_attn_res", block_size=3, read=read)
        scheme, branches = build(config, depth=4, dim=6, dtype=torch.float64)
        scheme_sites = list(zip(scheme.frame.sites, branches, strict=True))

        def twice(scheme, branches, x, sites=scheme_sites):
            stream = scheme.open(x)
            for site, branch in sites[:fork]:
                z, carry = scheme.read(stream, site)
                stream = scheme.write(stream, branch(z), carry, site)
            if fork:  # the block's reads are already computed ahead, and both go on from there
                scheme.read(stream, scheme.frame.sites[fork])
            ends = []
            for factor in (1.0, -2.0):
                other = stream
                for site, branch in sites[fork:]:
                    z, carry = scheme.read(other, site)
                    other = scheme.write(other, factor * branch(z), carry, site)
                ends.append(scheme.close(other))
            return ends[0] * ends[1]

        x = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        found.append(gradients(scheme, branches, x, forward=twice))
    for fast, reference in zip(*found, strict=True):
        torch.testing.assert_close(fast, reference, rtol=1e-10, atol=1e-12)


def test_full_keeps_every_source_once():
    """After a block of reads what is read ahead are the sources themselves, or one tensor of which they are views."""
    scheme, branches = build(nl.scheme("attn_res"), depth=AHEAD, dim=4, dtype=torch.float32)
    stream = scheme.open(torch.randn(1, 2, 4))
    with torch.no_grad():
        for site, branch in zip(scheme.frame.sites[:AHEAD], branches, strict=False):
            z, carry = scheme.read(stream, site)
            stream = scheme.write(stream, branch(z), carry, site)
    units = {unit.untyped_storage().data_ptr() for unit in stream.ahead.units[1:]}  # the first is the embedding
    assert len(stream.closed) == AHEAD + 1
    assert len(units) == (AHEAD if depth_kernels.usable(stream.closed[0]) else 1)
    assert {v.untyped_storage().data_ptr() for v in stream.closed[1:]} == units


def saved_bytes(model, tokens):
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens).sum()
    return sum(found.values()), loss


def test_what_is_kept_for_the_backward_pass():
    tokens = torch.zeros(2, 64, dtype=torch.long)
    kept = {}
    for label, scheme in {
        "pre_norm": nl.scheme("pre_norm"),
        "block": nl.scheme("block_attn_res"),
        "recompute": nl.scheme("block_attn_res", recompute=True),
        "full": nl.scheme("attn_res"),
        "reference": nl.scheme("attn_res", read="reference"),
    }.items():
        config = nl.TransformerConfig(vocab_size=8, dim=128, depth=12, heads=2, scheme=scheme)
        kept[label], _loss = saved_bytes(nl.Transformer(config), tokens)
    ratio = {label: size / kept["pre_norm"] for label, size in kept.items()}
    assert ratio["block"] <= 1.30
    assert ratio["recompute"] <= 1.15
    assert ratio["full"] <= 1.5
    assert ratio["reference"] > 2 * ratio["full"]


@pytest.mark.parametrize("eps", [1e-6, None])
def test_derivatives(eps):
    def leaf(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda v, w: keys(v, w, eps), (leaf(4, 3), leaf(5, 3)))

    def mixed(logits, *units, summed=False):
        lse, _, outputs, units = mix(logits, units, summed=summed)
        return lse, *outputs, *units

    assert torch.autograd.gradcheck(mixed, (leaf(3, 2, 4), leaf(3, 5), leaf(3, 5)))
    assert torch.autograd.gradcheck(mixed, (leaf(3, 5, 2), leaf(3, 3), leaf(3, 4, 3)))
    assert torch.autograd.gradcheck(partial(mixed, summed=True), (leaf(3, 5, 2), leaf(3, 3), leaf(3, 4, 3)))
    assert torch.autograd.gradcheck(mixed, (leaf(3, 3, 1), leaf(3, 5), leaf(3, 5), leaf(3, 5)))
    for norm in (lambda g: None, lambda g: Norm(g, 0.1)):
        arguments = (leaf(4, 3), leaf(4), leaf(4, 3), leaf(3), leaf(3))
        assert torch.autograd.gradcheck(
            lambda o, lse, b, w, g, norm=norm: merge(o, lse, b, Query(w, eps), norm=norm(g)), arguments
        )
        for summed in (0, 4):
            assert torch.autograd.gradcheck(
                lambda *x, norm=norm, summed=summed: read(x, norm, summed),
                (*(leaf(4) for _ in range(3)), *(leaf(4, 3) for _ in range(3)), leaf(3)),
            )
    assert torch.autograd.gradcheck(lambda x, g: handed_norm(x, Norm(g, 0.1)), (leaf(2, 4, 3), leaf(3)))


def read(arguments, norm, summed):
    h, handed = attend(arguments[:3], arguments[3:6], norm=norm(arguments[6]), summed=summed)
    return h, *handed


def test_a_summed_read_is_the_mean_times_the_number_of_sources():
    """In two phases, of which the first has three sources."""
    logits, values = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, 3, dtype=torch.float64)
    mean = (torch.softmax(logits, 1)[..., None] * values).sum(1)
    lse, _, (o,), _ = mix(logits[:, :3, None], values[:, :3].unbind(1), summed=True)
    rest = values[:, 3:].unbind(1)
    h, _ = attend([lse[:, 0], *logits[:, 3:].unbind(1)], [o, *rest], summed=3)
    torch.testing.assert_close(h, 5 * mean)


def test_a_scheme_whose_norms_are_scales_reads_sums():
    """What a swap makes of Full: the same reads as with the numbers outside of them, at any queries."""
    scheme, branches = build(nl.scheme("attn_res"), depth=AHEAD + 2, dim=5, dtype=torch.float64)
    for site, size in zip(scheme.frame.sites, scheme.input_scales(), strict=False):
        scheme.pre[site.index] = Scale(1 / size)
    scheme.final = Scale(1 / scheme.input_scales()[-1])
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    found = gradients(scheme, branches, x)
    scheme.enter = partial(type(scheme).enter, scheme)  # somebody looks in between
    assert_equal(found, gradients(scheme, branches, x), 1e-11)
    with scheme.taped(), torch.no_grad():
        torch.testing.assert_close(run(scheme, branches, x), found[0])


def test_the_recomputing_merge_has_the_same_derivatives():
    weights, v, u = torch.rand(4, 2).double(), torch.randn(4, 3).double(), torch.randn(4, 3).double()
    o = weighted_sum(weights, [v, u]).requires_grad_()
    lse, b, w = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4,), (4, 3), (3,)))
    inputs = (o, lse, b, w)
    kept = torch.autograd.grad(merge(*inputs[:3], Query(w, 1e-6))[0].square().sum(), inputs)
    again = torch.autograd.grad(merge(*inputs[:3], Query(w, 1e-6), rebuild=(weights, v, u))[0].square().sum(), inputs)
    assert_equal(again, kept, 1e-14)


def test_a_whole_model_by_gradcheck():
    for options in ({"name": "attn_res"}, {"name": "block_attn_res", "block_size": 3, "recompute": True}):
        scheme, branches = build(nl.scheme(**options), depth=5, dim=3, dtype=torch.float64)
        x = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
        queries = scheme.queries.detach().clone().requires_grad_()

        def forward(x, queries, scheme=scheme, branches=branches):
            with nn.utils.stateless._reparametrize_module(scheme, {"queries": queries}):
                return run(scheme, branches, x)

        assert torch.autograd.gradcheck(forward, (x, queries))


@pytest.mark.parametrize("name", ["attn_res", "block_attn_res"])
def test_zero_queries_are_pre_norm(name):
    models = []
    for scheme in ("pre_norm", name):
        torch.manual_seed(0)
        config = nl.TransformerConfig(vocab_size=11, dim=8, depth=9, heads=2, scheme=scheme, eps=0.0)
        models.append(nl.Transformer(config).double())
    tokens = torch.randint(0, 11, (2, 6))
    assert (models[0](tokens) - models[1](tokens)).abs().max() < 1e-12


def squares(model, tokens, parameters):
    return torch.func.functional_call(model, parameters, tokens).square().sum()


def test_checkpointing_and_torch_func_and_depth_mixing():
    for name in ("attn_res", "block_attn_res"):
        config = nl.TransformerConfig(vocab_size=11, dim=8, depth=6, heads=2, scheme=name)
        model = nl.Transformer(config).double()
        with torch.no_grad():
            model.scheme.queries.normal_()
        tokens = torch.randint(0, 11, (2, 6))
        model(tokens).square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model.enable_checkpointing()
        model(tokens).square().sum().backward()
        assert_equal([p.grad for p in model.parameters()], expected, 1e-12)
        model.enable_checkpointing(False)
        parameters = {key: value.detach() for key, value in model.named_parameters()}
        found = torch.func.grad(partial(squares, model, tokens))(parameters)
        assert_equal(list(found.values()), expected, 1e-11)
        mixing = nl.TransformerConfig.from_dict({**config.to_dict(), "scheme": {"name": name, "read": "reference"}})
        plain = nl.Transformer(mixing).double()
        plain.load_state_dict(model.state_dict())
        assert torch.equal(model.depth_mixing(tokens), plain.depth_mixing(tokens))


@pytest.mark.parametrize("name", ["attn_res", "block_attn_res", "hyper_connections", "mhc", "dense_former"])
def test_shapes_are_found_on_the_meta_device(name):
    with torch.device("meta"):
        model = nl.Transformer(nl.TransformerConfig(vocab_size=11, dim=8, depth=5, heads=2, scheme=name))
        assert model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 11)


def test_plain_formulas_equal_the_ones_with_derivatives(monkeypatch):
    """What torch.func gets."""
    logits, units = torch.randn(3, 5, 2), (torch.randn(3, 4), torch.randn(3, 4, 4))
    o, lse, b, w, g = torch.randn(3, 4), torch.randn(3), torch.randn(3, 4), torch.randn(4), torch.randn(4)

    def everything():
        lse_of, weights, outputs, _ = mix(logits, units)
        outputs += (*mix(logits, units, summed=True)[2], attend([lse, lse + 1], [o, b], summed=3)[0])
        reads = [attend([lse, lse + 1], [o, b], norm=norm)[0] for norm in (None, Norm(g, 1e-6))]
        merged = [merge(o, lse, b, Query(w, 1e-6), norm=norm)[0] for norm in (None, Norm(g, 1e-6))]
        return lse_of, weights, *outputs, *reads, *merged, keys(b, torch.stack([w, w]), None)[0]

    expected = everything()
    monkeypatch.setattr(depth_reads, "transformed", lambda: True)
    for one, other in zip(everything(), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_257_sources_train_a_step():
    """No cap on sources: 128 layers of Full, with every source reached by the gradient."""
    config = nl.TransformerConfig(vocab_size=16, dim=8, depth=128, heads=1, scheme="attn_res")
    model = nl.Transformer(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.randint(0, 16, (2, 8))
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(config.scheme.source_counts(256)) == 257
    assert config.scheme.source_counts(256)[-1] == 257
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert losses[1] < losses[0]


@pytest.mark.slow  # tracing takes its time; the contract suite compiles a small model of every scheme
@pytest.mark.parametrize(("name", "depth"), [("attn_res", AHEAD + 1), ("block_attn_res", 6)])
def test_compiled_whole(name, depth, kernels):
    """One graph, forwards and backwards, and no second one for another layer or another step."""
    if kernels != "C":
        pytest.skip("a compiler sees the plain formulas either way")
    config = nl.TransformerConfig(vocab_size=11, dim=8, depth=depth, heads=2, scheme=name, ffn="none")
    model = nl.Transformer(config)
    with torch.no_grad():
        model.scheme.queries.normal_()
    tokens = torch.randint(0, 11, (2, 6))
    model(tokens).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for _ in range(2):
        model.zero_grad()
        compiled(tokens).square().sum().backward()
    assert counter.frame_count == 1
    assert_equal([p.grad for p in model.parameters()], expected, 1e-4)
