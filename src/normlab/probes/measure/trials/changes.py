"""Changes that are taken back exactly: scaled, exchanged, replaced, and where the matrices are that they strike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.weights.gains import gain_of
from normlab.probes.trace.hooks import Layout
from normlab.probes.trace.roles import BranchRoles


@dataclass(frozen=True)
class Trial:
    """`changed()` is a context in which the model is another."""

    what: str  # completes "the loss falls ... "
    subject: str
    layers: tuple[int, ...]
    changed: Callable[[], AbstractContextManager[None]]
    milder: str = ""  # the `what` of a smaller change of the same kind: without a gain by that one this is not tried


QUERIES = ("q_proj", "query", "q_lin", "wq")


KEYS = ("k_proj", "key", "k_lin", "wk")


VALUES = ("v_proj", "value", "v_lin", "wv")


OUT = ("o_proj", "out_proj", "out_lin", "wo")


DOWN = ("down_proj", "fc2", "c_proj", "lin2", "dense_4h_to_h")


def find(layer: nn.Module, names: Sequence[str]) -> nn.Linear | None:
    """The only matrix of that name: a layer with two (cross-attention) is left alone."""
    found = [m for n, m in layer.named_modules() if n.rsplit(".", 1)[-1] in names and isinstance(m, nn.Linear)]
    return found[0] if len(found) == 1 else None


def asked(layer: nn.Module, query: nn.Linear) -> nn.Module:
    """What returns the queries as they are compared: a norm of the queries where there is one."""
    norms = [m for n, m in layer.named_modules() if n.rsplit(".", 1)[-1] in ("q_norm", "query_norm", "q_layernorm")]
    return norms[0] if norms else query


def same_shapes(one: nn.Module, other: nn.Module) -> bool:
    shapes = [[(name, p.shape) for name, p in layer.named_parameters()] for layer in (one, other)]
    return one is not other and shapes[0] == shapes[1]


SwappedPair = tuple[nn.Module | Tensor, nn.Module | Tensor]


def branches_of(layout: Layout, layer: nn.Module) -> tuple[BranchRoles, ...]:
    return layout.roles[id(layer)].branches if id(layer) in layout.roles else ()


def gate_and_up(layer: nn.Module) -> list[SwappedPair]:
    pairs: list[SwappedPair] = []
    for module in layer.modules():
        gate, up = getattr(module, "gate_proj", None), getattr(module, "up_proj", None)
        if isinstance(gate, nn.Linear) and isinstance(up, nn.Linear) and gate.weight.shape == up.weight.shape:
            pairs.append((gate, up))
        fused = getattr(module, "gate_up_proj", None)
        weight = fused.weight if isinstance(fused, nn.Linear) else fused
        if isinstance(weight, Tensor) and weight.dim() in (2, 3) and weight.shape[-2] % 2 == 0:
            halves = weight.detach().chunk(2, -2)
            pairs.append((halves[0], halves[1]))
    return pairs


def ordered(linear: nn.Linear, order: Tensor, dim: int) -> Callable[[], AbstractContextManager[None]]:
    """Heads in another order: rows of what makes them, columns of what reads them."""
    parts = linear.weight.detach().tensor_split(len(order), dim)
    return replaced(linear, torch.cat([parts[place] for place in order.tolist()], dim))


def inside(linear: nn.Linear, order: Tensor, width: int) -> Callable[[], AbstractContextManager[None]]:
    """The rows of every head in another order."""
    heads = linear.weight.detach().reshape(-1, width, linear.weight.shape[1])
    return replaced(linear, heads[:, order.to(heads.device)].reshape(linear.weight.shape))


def as_norm(norm: nn.Module, *, centred: bool) -> Callable[[], AbstractContextManager[None]]:
    """The norm of the other kind: a LayerNorm for an RMSNorm, and the reverse."""
    gain, bias = gain_of(norm), getattr(norm, "bias", None)

    def other(x: Tensor) -> Tensor:
        wide = x.float() - x.float().mean(-1, keepdim=True) if centred else x.float()
        unit = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain
        return (unit if bias is None else unit + bias).to(x.dtype)

    return as_function(norm, other)


def experts_of(routers: Sequence[nn.Module]) -> int:
    """How many there are to choose from; where no router says, no more than one takes."""
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    said = [getattr(router, name, None) for router in routers for name in names]
    return min((count for count in said if isinstance(count, int)), default=int(routers[0].top_k))  # type: ignore[arg-type]


def counted(router: nn.Module, change: int) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def changed() -> Iterator[None]:
        kept: int = router.top_k  # type: ignore[assignment]
        router.top_k = kept + change  # type: ignore[assignment]
        try:
            yield
        finally:
            router.top_k = kept  # type: ignore[assignment]

    return changed


def as_function(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def changed() -> Iterator[None]:
        handle = module.register_forward_hook(lambda _module, args, _output: function(args[0]))
        try:
            yield
        finally:
            handle.remove()

    return changed


def scaled(module: nn.Module, factor: float) -> Callable[[], AbstractContextManager[None]]:
    """What the module returns, times a factor."""

    def scale(_module: nn.Module, _args: object, output: object) -> object:
        if isinstance(output, Tensor):
            return output * factor
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (output[0] * factor, *output[1:])
        return output

    @contextmanager
    def changed() -> Iterator[None]:
        handle = module.register_forward_hook(scale)
        try:
            yield
        finally:
            handle.remove()

    return changed


def together(
    changes: Iterator[Callable[[], AbstractContextManager[None]]],
) -> Callable[[], AbstractContextManager[None]]:
    known = list(changes)

    @contextmanager
    def changed() -> Iterator[None]:
        with ExitStack() as stack:
            for change in known:
                stack.enter_context(change())
            yield

    return changed


class NotPossible(Exception):
    """This model is not made so that the change could be tried; nothing was changed."""


def swapped(pairs: Sequence[SwappedPair]) -> Callable[[], AbstractContextManager[None]]:
    def partners() -> list[tuple[Tensor, Tensor]]:
        known: list[tuple[Tensor, Tensor]] = []
        for first, second in pairs:
            ones, others = tensors_of(first), tensors_of(second)
            if [one.shape for one in ones] != [other.shape for other in others]:  # an adapter in one of them, say
                raise NotPossible
            known += zip(ones, others, strict=True)
        return known

    def exchange(known: list[tuple[Tensor, Tensor]]) -> None:
        for one, other in known:
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)

    @contextmanager
    def changed() -> Iterator[None]:
        known = partners()
        exchange(known)
        try:
            yield
        finally:
            exchange(known)

    return changed


def tensors_of(item: nn.Module | Tensor) -> list[Tensor]:
    return [item] if isinstance(item, Tensor) else [parameter.data for parameter in item.parameters()]


def replaced(module: nn.Module, weight: Tensor) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def changed() -> Iterator[None]:
        if not isinstance(module.weight, nn.Parameter):  # computed from others, as in torch.nn.utils.parametrize
            raise NotPossible
        own = module.weight.data
        kept = own.clone()
        own.copy_(weight)
        try:
            yield
        finally:
            own.copy_(kept)

    return changed


def times(parameters: Sequence[nn.Parameter], factor: float) -> Callable[[], AbstractContextManager[None]]:
    """Parameters times a factor, and back to the very same numbers."""

    @contextmanager
    def changed() -> Iterator[None]:
        kept = [parameter.data.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.data.mul_(factor)
        try:
            yield
        finally:
            for parameter, old in zip(parameters, kept, strict=True):
                parameter.data.copy_(old)

    return changed
