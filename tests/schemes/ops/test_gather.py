"""Gradients that readers of a source add up in place are those of autograd's ordinary way, whatever is done to the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

import normlab as nl
from normlab.schemes import depth_stream
from normlab.schemes.base import Site
from normlab.schemes.depth_kernels import available
from normlab.schemes.ops.gather import Gather, rooms_for

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
Gradients = list[Tensor | None]
SCHEMES = {"full": nl.scheme("attn_res"), "block": nl.scheme("block_attn_res", blocks=3)}


@contextmanager
def ordinary(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """No gradient is gathered inside."""
    with patch.context() as inside:
        inside.setattr(depth_stream, "gather_for", lambda v: None)
        yield


def model(kind: str, depth: int = 10) -> nl.Transformer:
    torch.manual_seed(0)
    config = nl.TransformerConfig(vocab_size=11, dim=8, depth=depth, heads=2, scheme=SCHEMES[kind])
    made = nl.Transformer(config).double()
    with torch.no_grad():
        for p in made.scheme.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype))
    return made


def tokens() -> Tensor:
    return torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(1))


def grads(made: nl.Transformer) -> Gradients:
    return [p.grad for p in made.parameters()]


def equal(one: Gradients, other: Gradients) -> None:
    assert [g is None for g in one] == [g is None for g in other]
    for a, b in zip(one, other, strict=True):
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def backward(made: nl.Transformer) -> Gradients:
    made.zero_grad(set_to_none=True)
    made(tokens()).square().mean().backward()
    return grads(made)


@pytest.mark.parametrize("kind", SCHEMES)
def test_gradients_are_those_of_the_ordinary_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[bool] = []
    room = Gather.room
    monkeypatch.setattr(Gather, "room", lambda self, like: added.append(True) or room(self, like))
    mine = backward(model(kind))
    assert added, "nothing was gathered: this test shows nothing"
    with ordinary(monkeypatch):
        equal(mine, backward(model(kind)))


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_graph_may_be_walked_twice_and_in_part(kind: str) -> None:
    made = model(kind)
    want = backward(model(kind))
    loss = made(tokens()).square().mean()
    late = [*made.parameters()][-4:]
    torch.autograd.grad(loss, late, retain_graph=True, allow_unused=True)  # stops half-way: sums are left over
    loss.backward(retain_graph=True)
    equal(grads(made), want)
    made.zero_grad(set_to_none=True)
    loss.backward()
    equal(grads(made), want)


def with_plain_branches(kind: str) -> nl.Transformer:
    made = model(kind)
    made.branches = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in made.sites).double()
    return made


def start() -> Tensor:
    return torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()


Call = Callable[[nn.Module, Tensor], Tensor]
CALLS: dict[str, Call] = {
    "plain": lambda branch, h: branch(h),
    "checkpoint": lambda branch, h: checkpoint(branch, h, use_reentrant=False),
    "reentrant": lambda branch, h: checkpoint(branch, h, use_reentrant=True),
}


def by_hand(made: nl.Transformer, x: Tensor, call: Call) -> Tensor:
    stream = made.scheme.open(x)
    for site, branch in zip(made.sites, made.branches, strict=True):
        h, carry = made.scheme.read(stream, site)
        stream = made.scheme.write(stream, call(branch, h), carry, site)
    return made.scheme.close(stream)


@pytest.mark.parametrize("kind", SCHEMES)
@pytest.mark.parametrize("way", CALLS)
def test_checkpointed_branches(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_plain_branches(kind)

    def gradients() -> Gradients:
        x = start()
        made.zero_grad(set_to_none=True)
        by_hand(made, x, CALLS[way]).square().mean().backward()
        return [x.grad, *grads(made)]

    mine = gradients()
    with ordinary(monkeypatch):
        equal(mine, gradients())


def checkpointed_layers(made: nl.Transformer, x: Tensor, *, reentrant: bool) -> Tensor:
    """The verbs themselves inside of the checkpoint: the stream crosses it."""
    stream = made.scheme.open(x)
    for site, branch in zip(made.sites, made.branches, strict=True):

        def layer(anchor: Tensor, stream: object, site: Site = site, branch: nn.Module = branch) -> object:
            h, carry = made.scheme.read(stream, site)
            return made.scheme.write(stream, branch(h), carry, site)

        stream = checkpoint(layer, x, stream, use_reentrant=reentrant)
    return made.scheme.close(stream)


@pytest.mark.parametrize("kind", SCHEMES)
def test_verbs_inside_of_a_checkpoint(kind: str) -> None:
    made, x = with_plain_branches(kind), start()
    checkpointed_layers(made, x, reentrant=False).square().mean().backward()
    mine = [x.grad, *grads(made)]
    made, x = with_plain_branches(kind), start()
    by_hand(made, x, CALLS["plain"]).square().mean().backward()
    equal(mine, [x.grad, *grads(made)])


@pytest.mark.parametrize("kind", SCHEMES)
def test_forks_and_detached_streams(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is read twice and continued twice, and a copy of it is cut off."""

    def gradients() -> Gradients:
        made, x = with_plain_branches(kind), start()
        scheme = made.scheme
        stream, total = scheme.open(x), x.new_zeros(())
        for site, branch in zip(made.sites, made.branches, strict=True):
            h, carry = scheme.read(stream, site)
            again, other_carry = scheme.read(stream, site)
            other = scheme.write(stream, branch(again) * 0.5, other_carry, site)
            cut = type(stream)(tuple(v.detach() for v in stream.closed), stream.partial)
            total = total + scheme.read(cut, site)[0].mean()
            stream = scheme.write(stream, branch(h), carry, site)
            if site.index + 1 < len(made.sites):
                total = total + scheme.read(other, made.sites[site.index + 1])[0].square().mean()
        (total + scheme.close(stream).square().mean()).backward()
        return [x.grad, *grads(made)]

    mine = gradients()
    with ordinary(monkeypatch):
        equal(mine, gradients())


@pytest.mark.parametrize("kind", SCHEMES)
def test_a_copy_of_the_stream_gets_its_own_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reentrant checkpoint or a stage makes one: every tensor in it is detached, and asked for its gradient."""

    def gradients() -> Gradients:
        made, x = with_plain_branches(kind), start()
        scheme, sites = made.scheme, [*zip(made.sites, made.branches, strict=True)]
        stream = scheme.open(x)
        for site, branch in sites[:11]:
            h, carry = scheme.read(stream, site)
            stream = scheme.write(stream, branch(h), carry, site)
        copy = tree_map_only(Tensor, lambda t: t.detach().requires_grad_(), stream)
        for site, branch in sites[11:14]:
            h, carry = scheme.read(copy, site)
            copy, first = scheme.write(copy, branch(h), carry, site), copy
            h.square().mean().backward(retain_graph=True)
            if site.index == 11:
                told = [v.grad for v in tree_leaves(first) if isinstance(v, Tensor)]
        return told

    mine = gradients()
    with ordinary(monkeypatch):
        equal(mine, gradients())


def test_a_call_that_finds_a_sum_taken_up_goes_the_ordinary_way() -> None:
    gather, v = Gather(), torch.ones(2, 3)
    assert rooms_for([gather], [v], [None])[0].returned is None
    gather.call = 7  # of another backward call, which may still be running
    (room,) = rooms_for([gather], [v], [None])
    assert room.returned is room.place
    assert gather.take() is None
