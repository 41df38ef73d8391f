"""Every operation of one layer's forward pass, as a graph: what was added to what, and times what.

Values alone cannot tell a branch that is switched off (a gate of zero at the start) from one that is not there, and a
small change of a large stream hides in rounding. The operations themselves can: a `TorchDispatchMode` sees each one,
below every way of writing it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from normlab.probes.trace.tensors import maybe_tensor, tensors

# These hand their first argument on: other shape or type, same numbers in the same order.
PASS = frozenset(
    ("view", "_unsafe_view", "reshape", "_reshape_alias", "alias", "clone", "contiguous", "detach", "_to_copy", "to",
     "lift_fresh", "unsqueeze", "squeeze", "expand", "slice", "select", "copy", "native_dropout", "dropout")
)  # fmt: skip
MATRIX = frozenset(("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "mv", "_scaled_mm", "mkldnn_linear"))


@dataclass(eq=False)
class Node:
    """One result of one operation, or a tensor that came from outside ("leaf")."""

    op: str
    value: Tensor
    time: int
    parents: tuple[Node, ...] = ()
    data: bool = True  # does it depend on tokens? A gate made of parameters alone does not
    function: Callable[..., Any] | None = field(default=None, repr=False)
    args: Any = field(default=(), repr=False)  # with nodes in the place of tensors
    kwargs: Any = field(default=None, repr=False)
    name: str = ""  # of a parameter

    def again(self) -> Tensor:
        """The value from the parameters as they are now."""
        if self.function is None:
            return self.value
        args, kwargs = (_swapped(each, lambda node: node.again()) for each in (self.args, self.kwargs))
        result = self.function(*args, **kwargs)
        return result if isinstance(result, Tensor) else self.value


@dataclass(eq=False)
class ModuleCall:
    """One call of one module inside the layer."""

    name: str
    module: nn.Module
    read: Node | None
    start: int
    end: int = -1
    wrote: Node | None = None
    ops: set[str] = field(default_factory=set)

    @property
    def is_norm(self) -> bool:
        kind = type(self.module).__name__.lower()
        named = "norm" in kind or kind in ("dyt", "dynamictanh", "derf")
        return named and not self.ops & MATRIX  # lucidrains' PreNorm(fn) is a branch, not a norm


class Ledger(TorchDispatchMode):
    """Write down what happens while `active`. Tensors are kept, so that an id stands for one tensor only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {id(p): name for name, p in [*model.named_parameters(), *model.named_buffers()]}
        self.active = False
        self.clear()

    def clear(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.calls: list[ModuleCall] = []
        self.open: list[ModuleCall] = []
        self.counts: dict[str, int] = {}  # the second call of a module in one layer is `name@2`
        self.time = 0

    def tick(self) -> int:
        self.time += 1
        return self.time

    def node(self, tensor: Tensor) -> Node:
        """The node that this tensor is now; one that was never seen is a leaf."""
        known = self.nodes.get(id(tensor))
        if known is None or known.value is not tensor:
            name = self.names.get(id(tensor), "")
            known = self.nodes[id(tensor)] = Node("leaf", tensor, self.tick(), data=not name, name=name)
        return known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        given = [self.node(tensor) for tensor in tensors((args, kwargs))]
        replaced = _swapped(args, self.node, Tensor), _swapped(kwargs, self.node, Tensor)
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        for call in self.open:
            call.ops.add(name)
        random = name.startswith(("rand", "bernoulli", "native_dropout"))
        data = random or any(node.data for node in given)
        for tensor in tensors(result):
            made = Node(name, tensor, self.tick(), tuple(given), data, func, *replaced)
            self.nodes[id(tensor)] = made
        return result

    def enter(self, name: str, module: nn.Module, given: Tensor | None) -> None:
        count = self.counts[name] = self.counts.get(name, 0) + 1
        read = None if given is None else self.node(given)
        self.open.append(ModuleCall(f"{name}@{count}" if count > 1 else name, module, read, self.tick()))

    def leave(self, module: nn.Module, result: Tensor | None) -> None:
        while self.open:
            call = self.open.pop()
            call.end = self.tick()
            if call.module is module:
                call.wrote = None if result is None else self.node(result)
                self.calls.append(call)
                return


def _swapped(value: Any, change: Callable[[Any], Any], kind: type = Node) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_swapped(item, change, kind) for item in value)
    return {key: _swapped(item, change, kind) for key, item in value.items()} if isinstance(value, dict) else value


def strip(node: Node) -> Node:
    """The node behind changes of shape and type."""
    while node.op in PASS and node.parents and node.parents[0].value.numel() == node.value.numel():
        node = node.parents[0]
    return node


def ancestors(node: Node, stop: set[Node]) -> Iterator[Node]:
    """Everything that a node was computed from, not beyond `stop`."""
    seen, queue = set(), [node]
    while queue:
        here = queue.pop()
        if here in seen:
            continue
        seen.add(here)
        yield here
        if here not in stop:
            queue.extend(here.parents)


@dataclass(eq=False)
class LayerTrace:
    """One call of a layer: what it was given, what it returned, what its parts did."""

    start: Node
    end: Node
    calls: list[ModuleCall]
    foreign: set[Node]  # another sequence that it was given: an encoder's states


def recording(ledger: Ledger, layer: nn.Module, finished: Callable[[LayerTrace], None]) -> list[RemovableHandle]:
    """Hooks that fill the ledger in the first call of `layer`, then tell what it did."""
    done = False
    given: list[tuple[Node, set[Node]]] = []

    def begin(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tensor = maybe_tensor((args, kwargs))
        if not done and tensor is not None and not ledger.active:
            ledger.clear()
            ledger.active = True
            given[:] = [(ledger.node(tensor), {ledger.node(each) for each in _foreign(module, args, kwargs)})]

    def end(_module: nn.Module, _args: object, output: object) -> None:
        nonlocal done
        if done or not given or not ledger.active:
            return
        ledger.active, done = False, True
        tensor = maybe_tensor(output)
        if tensor is not None:
            start, foreign = given[0]
            finished(LayerTrace(start, ledger.node(tensor), list(ledger.calls), foreign))
        ledger.clear()

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, kwargs: object) -> None:
            if ledger.active and given and not done:
                ledger.enter(name, module, maybe_tensor((args, kwargs)))

        return hook

    def leave(module: nn.Module, _args: object, output: object) -> None:
        if ledger.active and given and not done:
            ledger.leave(module, maybe_tensor(output))

    handles = [
        layer.register_forward_pre_hook(begin, with_kwargs=True, prepend=True),
        layer.register_forward_hook(end),
    ]
    for name, module in layer.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(enter(name), with_kwargs=True, prepend=True))
            handles.append(module.register_forward_hook(leave))
    return handles


_OTHERS = ("encoder", "memory", "context", "cross")


def _foreign(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Tensor]:
    """States of another sequence among the arguments, by the names that models give them."""
    try:
        named = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        named = kwargs
    named = {**named, **kwargs}
    return [
        value
        for name, value in named.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 3
        if "mask" not in name and any(word in name for word in _OTHERS)
    ]
