"""The lean forms of hyper-connections, mHC and DenseFormer: the plain formulas' values and gradients, with less kept."""

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import normlab as nl
from normlab.schemes.dense_former import _Average
from normlab.schemes.hyper import MixingWeights, normed_product, read_streams, write_streams
from normlab.schemes.norms import inverse_rms


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_derivatives():
    assert torch.autograd.gradcheck(lambda x, m: normed_product(x, m, 1e-6), (leaf(2, 3, 4), leaf(4, 5)))
    assert torch.autograd.gradcheck(_Average.apply, (leaf(3), leaf(2, 4), leaf(2, 4), leaf(2, 4)))
    assert torch.autograd.gradcheck(read_streams, (leaf(2, 3, 4), leaf(2, 3)))
    streams, y, res, post = leaf(2, 3, 4), leaf(2, 4), leaf(2, 3, 3), leaf(2, 3)
    assert torch.autograd.gradcheck(
        lambda s, y, r, p: write_streams(s, y, MixingWeights(r, p)), (streams, y, res, post)
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_streams_follow_the_equation(n, d, batch, time, static):
    """H <- res H + post (x) y, h = pre H, for weights of each token or of all."""
    leading = () if static else (batch, time)
    streams, y = torch.randn(batch, time, n, d).double(), torch.randn(batch, time, d).double()
    pre, post, res = (torch.randn(*leading, *shape).double() for shape in ((n,), (n,), (n, n)))
    h = torch.einsum("...k,...kd->...d", pre.expand(batch, time, n), streams)
    torch.testing.assert_close(read_streams(streams, pre), h)
    written = torch.einsum("...jk,...kd->...jd", res.expand(batch, time, n, n), streams)
    written = written + post.expand(batch, time, n)[..., None] * y[..., None, :]
    torch.testing.assert_close(write_streams(streams, y, MixingWeights(res, post)), written)
    matrix = torch.randn(d, 3).double()
    torch.testing.assert_close(normed_product(y, matrix, 1e-6)[0], (y * inverse_rms(y, 1e-6)) @ matrix)


SCHEMES = [("hyper_connections", {}), ("hyper_connections", {"dynamic": False}), ("mhc", {}), ("dense_former", {})]


def model_of(name, options, **shape):
    shape = {"dim": 8, "depth": 3, "heads": 2, **shape}
    model = nl.Transformer(nl.TransformerConfig(vocab_size=11, scheme=nl.scheme(name, **options), **shape)).double()
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def squares(model, tokens, parameters):
    return torch.func.functional_call(model, parameters, tokens).square().sum()


@pytest.mark.parametrize(("name", "options"), SCHEMES)
def test_torch_func_takes_the_plain_formulas_to_the_same_gradients(name, options):
    model, tokens = model_of(name, options), torch.randint(0, 11, (2, 6))
    model(tokens).square().sum().backward()
    parameters = {key: value.detach() for key, value in model.named_parameters()}
    found = torch.func.grad(lambda p: squares(model, tokens, p))(parameters)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "limit"), [(*SCHEMES[0], 1.6), (*SCHEMES[1], 1.6), (*SCHEMES[2], 1.6), (*SCHEMES[3], 1.1)]
)
def test_what_is_kept_for_the_backward_pass(name, options, limit):
    kept = {}
    for label, chosen in (("pre_norm", {}), (name, options)):
        model = model_of(label, chosen, dim=128, depth=6)
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found = {}

        def pack(tensor, found=found):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = model(torch.zeros(2, 64, dtype=torch.long))
        kept[label] = sum(s.nbytes() for address, s in found.items() if address not in parameters)
        del y
    assert kept[name] / kept["pre_norm"] <= limit
