"""The C kernels of fast reads give what PyTorch gives, with one thread or two, and stay out where they cannot work."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import normlab as nl
from normlab.schemes import depth_kernels
from normlab.schemes.depth_reads import Norm, Query, attend, handed_norm, merge, mix

F64 = torch.float64
TIGHT = {torch.float32: 2e-6, F64: 1e-13}


@pytest.fixture
def fresh(monkeypatch):
    """Kernels as in a new process, also afterwards."""
    depth_kernels._kernels.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    depth_kernels._kernels.cache_clear()


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


needs_compiler = pytest.mark.skipif(
    depth_kernels._kernels(torch.float32) is None or not depth_kernels.enabled(), reason="no C compiler here"
)


def both(monkeypatch, function):
    """What the kernels give, and what PyTorch gives."""
    assert depth_kernels.usable(torch.zeros(1, 1)) is not None  # else PyTorch would be compared with itself
    found = function()
    monkeypatch.setenv(depth_kernels.ENVIRONMENT, "off")
    expected = function()
    monkeypatch.delenv(depth_kernels.ENVIRONMENT)
    return found, expected


def with_gradients(function, *inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    torch.manual_seed(3)
    return [*outputs, *torch.autograd.grad(outputs, inputs, [torch.randn_like(y) for y in outputs])]


def assert_close(found, expected, dtype):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TIGHT[dtype] * max(1.0, float(other.detach().abs().max())))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("tokens", "d"), [(1, 1), (7, 5), (130, 33), (300, 256)])
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_merge(monkeypatch, two_threads, dtype, tokens, d, eps):
    torch.manual_seed(0)
    o, b = torch.randn(2, tokens, d, dtype=dtype)
    lse, query = torch.randn(tokens, dtype=dtype), torch.randn(d, dtype=dtype) / d**0.5
    gain = torch.randn(d, dtype=dtype)

    def merged(o, lse, b, query, gain):
        """Without a norm and with one, and the sum handed on."""
        h, passed = merge(o, lse, b, Query(query, eps))
        return h, *merge(o, lse, passed, Query(query, eps), norm=Norm(gain, 1e-5))

    assert_close(*both(monkeypatch, lambda: with_gradients(merged, o, lse, b, query, gain)), dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("tokens", "d"), [(1, 1), (7, 5), (130, 33), (300, 256)])
@pytest.mark.parametrize("sources", [1, 2, 4, 5, 9])
def test_attend(monkeypatch, two_threads, dtype, tokens, d, sources):
    torch.manual_seed(0)
    logits, values = torch.randn(sources, tokens, dtype=dtype), torch.randn(sources, tokens, d, dtype=dtype)
    gain = torch.randn(d, dtype=dtype)

    def read(logits, values, gain):
        h, handed = attend(logits.unbind(0), values.unbind(0))
        y, handed = attend(logits.unbind(0), [values[0], *handed], norm=Norm(gain, 1e-5))
        z, handed = attend(logits.unbind(0), [values[0], *handed], summed=5)
        return h, y, z, *handed

    assert_close(*both(monkeypatch, lambda: with_gradients(read, logits, values, gain)), dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_norm_that_hands_its_input_on(monkeypatch, two_threads, dtype):
    x, gain = torch.randn(4, 70, 33, dtype=dtype), torch.randn(33, dtype=dtype)
    calls = both(monkeypatch, lambda: with_gradients(lambda x, g: handed_norm(x, Norm(g, 1e-5)), x, gain))
    assert_close(*calls, dtype)
    leaves = [x.clone().requires_grad_(), gain.clone().requires_grad_()]
    y, passed = handed_norm(leaves[0], Norm(leaves[1], 1e-5))
    expected = [one.clone().detach().requires_grad_() for one in leaves]
    plain = Norm(expected[1], 1e-5)(expected[0])
    torch.testing.assert_close(y, plain)
    found = torch.autograd.grad((y * passed).square().sum(), leaves)
    wanted = torch.autograd.grad((plain * expected[0]).square().sum(), expected)
    torch.testing.assert_close(found, wanted)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("sources", "queries"), [(1, 1), (2, 1), (4, 4), (5, 3), (9, 6)])
@pytest.mark.parametrize(("tokens", "d"), [(3, 1), (130, 33), (200, 256)])
def test_mix(monkeypatch, two_threads, dtype, sources, queries, tokens, d):
    torch.manual_seed(0)
    logits = torch.randn(tokens, sources, queries, dtype=dtype) * 3
    units = [*torch.randn(sources - 1, tokens, d, dtype=dtype), torch.randn(tokens, 2, d, dtype=dtype)]
    logits = torch.cat([logits, logits[:, :1] - 1], dim=1)

    def outputs(logits, *units):
        lse, _, found, units = mix(logits, units)
        again, _, more, units = mix(logits, units, summed=True)  # what was handed on
        return lse, *found, again, *more, *units

    assert_close(*both(monkeypatch, lambda: with_gradients(outputs, logits, *units)), dtype)


@needs_compiler
@pytest.mark.parametrize("sources", [2, 5, 9, 41, 64])  # 41 * fl(1 / 41) is not 1
def test_equal_logits_add_up_as_a_residual_stream_does(sources):
    """To the last bit: summed reads start as the plain stream."""
    torch.manual_seed(0)
    values = torch.randn(sources, 3, 130) * torch.logspace(-3, 3, 130)
    plain = values[0]
    for v in values[1:]:
        plain = plain + v
    lse, weights, outputs, _ = mix(torch.zeros(3, sources, 2), list(values), summed=True)
    assert torch.equal(lse, torch.zeros(3, 2))
    assert torch.equal(weights, torch.ones_like(weights))
    assert all(torch.equal(o, plain) for o in outputs)
    few = sources // 2
    begun = torch.stack(mix(torch.zeros(3, few, 1), list(values[:few]), summed=True)[2])[0] if few > 1 else values[0]
    h, _ = attend([torch.zeros(3)] * (1 + sources - few), [begun, *values[few:]], summed=few)
    assert torch.equal(h, plain)


@needs_compiler
@pytest.mark.parametrize("scheme", ["block_attn_res", "attn_res"])
def test_a_model_with_and_without(monkeypatch, scheme):
    def losses():
        torch.manual_seed(0)
        model = nl.Transformer(nl.TransformerConfig(vocab_size=16, dim=24, depth=9, heads=2, scheme=nl.scheme(scheme)))
        with torch.no_grad():
            for parameter in model.scheme.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model = model.double()
        y = model(torch.arange(16).view(2, 8)).sum()
        return [y, *torch.autograd.grad(y, [*model.parameters()])]

    assert_close(*both(monkeypatch, losses), F64)


@needs_compiler
def test_what_is_not_finite_stays_so():
    kernels = depth_kernels._kernels(torch.float32)
    b = torch.randn(4, 8)
    b[1, 3], b[2, 0] = float("nan"), float("inf")
    h, _ = kernels.merge_forward(torch.randn(4, 8), torch.zeros(4), b, torch.randn(8), 1e-5, None, 0.0)
    assert h.isfinite().all(1).tolist() == [True, False, False, True]
    logits = torch.randn(3, 2, 2)
    logits[1, 0, 0] = float("nan")
    lse, _, out = kernels.mix_forward(logits, [torch.randn(3, 8), torch.randn(3, 8)], 1.0)
    assert lse.isfinite().tolist() == [[True, True], [False, True], [True, True]]
    assert out[0].isfinite().all(1).tolist() == [True, False, True]


@needs_compiler
def test_where_kernels_stay_out(fresh):
    x = torch.randn(4, 6)
    assert depth_kernels.usable(x) is not None
    assert depth_kernels.usable(x, x.double()) is None
    assert depth_kernels.usable(x.bfloat16()) is None
    assert depth_kernels.usable(x.t()) is None
    assert depth_kernels.usable(x.to("meta")) is None
    with FlopCounterMode(display=False):
        assert depth_kernels.usable(x) is None
    fresh.setenv(depth_kernels.ENVIRONMENT, "off")
    assert depth_kernels.usable(x) is None


def test_no_compiler_no_kernels(fresh):
    fresh.setenv("CC", "there-is-no-such-compiler")
    assert depth_kernels.usable(torch.randn(4, 6)) is None
    logits, v = torch.randn(5, 2, 3), torch.randn(5, 2, 6)
    _, weights, outputs, _ = mix(logits, [v])
    torch.testing.assert_close(torch.stack(outputs, 1), weights.transpose(1, 2) @ v)


def test_a_compilers_name_with_an_open_quote(fresh):
    fresh.setenv("CC", "cc 'x")
    assert depth_kernels.usable(torch.randn(4, 6)) is None


@needs_compiler
def test_a_blank_compilers_name_is_none(fresh):
    fresh.setenv("CC", "  ")
    assert depth_kernels.usable(torch.randn(4, 6)) is not None


@needs_compiler
def test_wrong_shapes_never_reach_c():
    kernels = depth_kernels._kernels(torch.float32)
    o, lse, b, query = torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, 4), torch.zeros(4)
    for wrong in ((o[:2], lse, b, query), (o, lse[:2], b, query), (o, lse, b, query[:3])):
        with pytest.raises(ValueError, match="was expected"):
            kernels.merge_forward(*wrong, 1e-6, None, 0.0)
    for sources in ([o], [o, o[:2]], [o, torch.zeros(3, 5)]):
        with pytest.raises(ValueError, match="was expected"):
            kernels.mix_forward(torch.zeros(3, 2, 1), sources, 1.0)


@needs_compiler
@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_sees_the_plain_backward():
    o, lse, b, query = (torch.randn(*shape, requires_grad=True) for shape in ((3, 4), (3,), (3, 4), (4,)))
    expected = torch.autograd.grad(merge(o, lse, b, Query(query, 1e-6))[0].square().sum(), [o, lse, b, query])
    loss = merge(o, lse, b, Query(query, 1e-6))[0].square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        loss.backward()
    for x, gradient in zip((o, lse, b, query), expected, strict=True):
        torch.testing.assert_close(x.grad, gradient)


@needs_compiler
def test_flags_in_the_compilers_name(fresh, tmp_path):
    fresh.setenv("CC", "cc -DNOTHING=1")
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert depth_kernels.usable(torch.randn(4, 6)) is not None


@needs_compiler
def test_a_compiler_that_fails(fresh, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    fresh.setenv("CC", str(broken))
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert depth_kernels.usable(torch.randn(4, 6)) is None
    assert list((tmp_path / "cache" / "normlab" / "kernels").iterdir()) == []


@needs_compiler
def test_nothing_is_loaded_from_a_folder_that_others_may_write_to(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert depth_kernels.usable(torch.randn(4, 6)) is not None
    (tmp_path / "normlab" / "kernels").chmod(0o777)
    depth_kernels._kernels.cache_clear()
    assert depth_kernels.usable(torch.randn(4, 6)) is None


@needs_compiler
def test_built_once(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = []
    true_run = subprocess.run
    fresh.setattr(subprocess, "run", lambda *a, **k: runs.append(a) or true_run(*a, **k))
    before = os.umask(0o002)  # as on many machines: a group of one's own may write
    try:
        for _ in range(2):
            depth_kernels._kernels.cache_clear()
            assert depth_kernels.usable(torch.randn(4, 6)) is not None
    finally:
        os.umask(before)
    assert len(runs) == 1
    assert sorted(path.suffix for path in (tmp_path / "normlab" / "kernels").iterdir()) == [".sha256", ".so"]


FOREIGN = "int parallel(void) { return 1; }"  # a library without our functions

DAMAGE = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(b"\x7fELF" + bytes(range(256)) * 40),
    "no digest": lambda path: path.with_suffix(".sha256").unlink(),
    "garbled digest": lambda path: path.with_suffix(".sha256").write_bytes(b"\xff"),
    "others may write to it": lambda path: path.chmod(0o666),
    "a link": lambda path: (path.rename(path.with_name("elsewhere")), path.symlink_to(path.with_name("elsewhere"))),
}


SCRIPT = """
import os, sys, torch
from normlab.schemes import depth_kernels as k
for cache in sys.argv[1:]:
    os.environ["XDG_CACHE_HOME"] = cache
    k._kernels.cache_clear()
    print(cache, k.usable(torch.randn(4, 6)) is not None, flush=True)
"""


@needs_compiler
def test_a_damaged_library_is_built_anew(tmp_path):
    """In a process of its own: the library of before would kill it, and the last line tells where."""

    def start(*caches):
        done = subprocess.run([sys.executable, "-c", SCRIPT, *caches], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout.splitlines()

    whole = tmp_path / "whole"
    assert start(str(whole)) == [f"{whole} True"]
    libraries = {}
    for name, damage in DAMAGE.items():
        shutil.copytree(whole, tmp_path / name)
        (libraries[name],) = (tmp_path / name / "normlab" / "kernels").glob("*.so")
        assert depth_kernels._intact(libraries[name])
        damage(libraries[name])
        assert not depth_kernels._intact(libraries[name]), name
    assert start(*(str(tmp_path / name) for name in DAMAGE)) == [f"{tmp_path / name} True" for name in DAMAGE]
    for name, library in libraries.items():
        assert depth_kernels._intact(library), name


@needs_compiler
def test_a_library_without_our_functions_is_built_anew(fresh, tmp_path):
    """Even if its digest is right."""
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert depth_kernels.usable(torch.randn(4, 6)) is not None
    (library,) = (tmp_path / "normlab" / "kernels").glob("*.so")
    (tmp_path / "foreign.c").write_text(FOREIGN)
    library.unlink()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "foreign.c")], check=True)
    library.with_suffix(".sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    library.chmod(0o755)
    depth_kernels._kernels.cache_clear()
    kernels = depth_kernels.usable(torch.randn(4, 6))
    assert kernels is not None
    assert kernels.library.merge_forward


def test_a_library_of_another_owner_is_not_ours(tmp_path, monkeypatch):
    library = tmp_path / "depth.so"
    library.write_bytes(b"x")
    library.with_suffix(".sha256").write_text(hashlib.sha256(b"x").hexdigest())
    assert depth_kernels._intact(library)
    monkeypatch.setattr(os, "getuid", lambda: library.stat().st_uid + 1)
    assert not depth_kernels._intact(library)
