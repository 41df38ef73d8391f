"""The value in the place of hidden states."""

import pytest
import torch

from normlab.errors import UnsupportedError
from normlab.schemes import Frame, make_sites, scheme
from normlab.surgery.stream import Stream, StreamPlan

pytest.importorskip("transformers")


def stream(name="pre_norm", joins=""):
    sites = make_sites(2)
    built = scheme(name).build(Frame(8, sites))
    for at in range(4):
        built.pre[at] = torch.nn.Identity()
    built.final = torch.nn.Identity()
    return Stream.opened(built, StreamPlan(sites, (joins,) * 4), torch.randn(2, 3, 8))


@pytest.mark.parametrize("name", ["pre_norm", "attn_res", "hyper_connections", "dense_former", "lambda_skip"])
def test_it_answers_as_hidden_states_do(name):
    x = stream(name)
    assert x.shape == (2, 3, 8)
    assert x.size(-1) == 8
    assert (x.dtype, x.device.type, x.ndim, x.dim()) == (torch.float32, "cpu", 3, 3)
    assert x.reshape(-1, 8) is x
    assert x.view(2, 3, 8) is x
    assert x.to("cpu") is x  # a copy would forget that it was read
    assert x.hidden().shape == (2, 3, 8)


@pytest.mark.parametrize("add", [lambda x, y: x + y, lambda x, y: y + x, torch.add, lambda x, y: torch.add(y, x)])
def test_every_spelling_of_an_addition_writes(add):
    x = stream()
    h, y = x.read(), torch.randn(2, 3, 8)
    after = add(x, y)
    assert after.index == 1
    assert torch.equal(after.state, h + y)
    assert x.index == 0  # a value: the old one is as it was
    assert torch.equal(add(x, y).state, after.state)


def test_parallel_branches_read_once():
    x = stream("mhc")
    assert x.read() is x.read()
    assert x.fresh().seen is None


def test_a_norm_behind_the_addition():
    def norm(t):
        return 2 * t

    adds, norms = stream(joins="adds"), stream(joins="norms")
    y = torch.randn(2, 3, 8)
    for x in (adds, norms):
        h = x.read()
        pending = x + y
        assert pending.index == 0
        torch.testing.assert_close(pending.joined(norm).state, 2 * (h + y))
    with pytest.raises(UnsupportedError, match="without one"):
        stream(joins="adds").joined(norm)


def test_what_it_refuses():
    x = stream()
    with pytest.raises(UnsupportedError, match="no single tensor, and softmax was called on it"):
        torch.softmax(x, -1)
    with pytest.raises(UnsupportedError, match="nothing has read the stream"):
        _ = x + torch.zeros(2, 3, 8)
    x.read()
    with pytest.raises(UnsupportedError, match="adds a float"):
        _ = x + 1.0


@pytest.mark.parametrize(
    "name", ["pre_norm", "attn_res", "block_attn_res", "hyper_connections", "dense_former", "mudd"]
)
def test_parts_rebuild_it(name):
    x = stream(name)
    for _ in range(3):
        x.read()
        x = x + torch.randn(2, 3, 8)
    like = x.skeleton()
    again = Stream(x.scheme, x.plan, None, x.index).rebuilt(x.parts(), like)
    torch.testing.assert_close(again.read(), x.read())
