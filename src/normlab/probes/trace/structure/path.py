"""The way of the stream through a layer, walked back from what it returns to what it was given.

Each step of the way is a norm, a factor, or a write: something is added. Which operand of an addition is the stream
follows from where it comes from: sums, factors and norms lead back to the layer's input, a matrix product does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normlab.probes.trace.roles import Factor
from normlab.probes.trace.structure.ledger import PASS, ModuleCall, Node, strip


class NotAStream(Exception):
    """Why a layer's arithmetic is no residual stream; the message completes "its output ..."."""


@dataclass(frozen=True)
class Weight:
    """A product of numbers and of nodes that depend on parameters alone."""

    number: float = 1.0
    nodes: tuple[tuple[Node, bool], ...] = ()  # with True where it is divided by

    def times(self, other: Weight) -> Weight:
        return Weight(self.number * other.number, self.nodes + other.nodes)

    @property
    def is_one(self) -> bool:
        return self.number == 1.0 and not self.nodes

    def value(self) -> Tensor | float:
        found: Tensor | float = self.number
        for node, divided in self.nodes:
            gate = node.again()
            gate = gate.reshape(-1) if gate.numel() > 1 else gate.reshape(())
            found = found / gate if divided else found * gate
        return found

    def factor(self) -> Factor | float:
        if not self.nodes:
            return self.number
        names = [f"1/{_named(node)}" if divided else _named(node) for node, divided in self.nodes]
        return Factor(" * ".join([*([f"{self.number:g}"] if self.number != 1 else []), *names]), self.value)


@dataclass
class Write:
    """stream <- skip stream + sum of the terms"""

    before: Node
    after: Node
    terms: list[tuple[Weight, Node]]
    skip: Weight = field(default_factory=Weight)


@dataclass
class NormOnPath:
    call: ModuleCall
    before: Node
    after: Node


@dataclass
class Weighed:
    weight: Weight
    before: Node
    after: Node


Step = Write | NormOnPath | Weighed
# What a node is: ("pass", [(1, parent)]), ("sum", [(weight, parent), ...]), ("gate", two parents), or None.
Parts = list[tuple[Weight, Node]]


def linear(node: Node) -> Parts | None:
    """The operands that a node is a sum of, each with its weight; None where it is no such sum."""
    op = node.op.rstrip("_")
    if op in PASS and node.parents and node.parents[0].value.numel() == node.value.numel():
        return [(Weight(), node.parents[0])]
    if op in ("add", "sub", "rsub"):
        return _sum(op, node)
    if op in ("mul", "div"):
        return _product(op, node)
    if op == "neg":
        return [(Weight(-1.0), node.parents[0])]
    if op == "lerp":  # a + w (b - a)
        first, second, weight = node.args
        if isinstance(weight, float):
            return [(Weight(1 - weight), first), (Weight(weight), second)]
    return None


def _sum(op: str, node: Node) -> Parts | None:
    first, second = node.args[0], node.args[1]
    alpha = float((node.kwargs or {}).get("alpha", node.args[2] if len(node.args) > 2 else 1.0))
    one, two = (1.0, alpha) if op == "add" else (1.0, -alpha) if op == "sub" else (-alpha, 1.0)
    found = []
    for number, each in ((one, first), (two, second)):
        if isinstance(each, Node):
            found.append((Weight(number), each))
        elif each:
            return None  # a number added to every coordinate: no stream does that
    return found


def _product(op: str, node: Node) -> Parts | None:
    first, second = node.args[0], node.args[1]
    if not isinstance(second, Node):
        number = float(second)
        return [(Weight(number if op == "mul" else 1 / number if number else float("nan")), first)]
    if not isinstance(first, Node):
        return None if op == "div" else [(Weight(float(first)), second)]
    if _gate(second, node):
        return [(Weight(1.0, ((second, op == "div"),)), first)]
    if op == "mul" and _gate(first, node):
        return [(Weight(1.0, ((first, False),)), second)]
    for mask, other in ((second, first), (first, second)):
        if op == "mul" and other.value.numel() == node.value.numel() and bool((mask.value == 1).all()):
            return [(Weight(), other)]  # a mask of ones, over text without padding
    return None


def _gate(gate: Node, product: Node) -> bool:
    """Made of parameters alone, and one number, or one for each coordinate."""
    size = gate.value.numel()
    return not gate.data and (size == 1 or (size == product.value.shape[-1] and gate.value.shape[-1] == size))


class PathBack:
    """Back from the layer's output to its input."""

    def __init__(self, start: Node, calls: Iterable[ModuleCall]) -> None:
        self.start = strip(start)
        self.calls = [call for call in calls if call.wrote is not None]
        self.norms = {strip(call.wrote): call for call in self.calls if call.is_norm and call.read and call.wrote}
        # The call that returned a node last: a dropout that does nothing in eval mode still stands behind it.
        self.returned = {strip(call.wrote): call for call in self.calls if call.wrote}
        self._reach: dict[Node, int] = {}

    def reach(self, node: Node) -> int:
        """2 where the node is the stream in a sum, 1 where a norm lies between, 0 where it is something else."""
        node = strip(node)
        if node is self.start:
            return 2
        if node in self._reach:
            return self._reach[node]
        self._reach[node] = 0
        found = 0
        if (call := self.norms.get(node)) is not None and call.read is not None:
            found = min(1, self.reach(call.read))
        elif node.value.numel() == self.start.value.numel() and (parts := linear(node)) is not None:
            found = max((self.reach(part) for _, part in parts), default=0)
        self._reach[node] = found
        return found

    def steps(self, node: Node) -> list[Step]:
        """What happens to the stream on its way to `node`, in order."""
        node = strip(node)
        if node is self.start:
            return []
        if (call := self.norms.get(node)) is not None and call.read is not None and self.reach(call.read):
            return [*self.steps(call.read), NormOnPath(call, strip(call.read), node)]
        parts = linear(node)
        if not any(self.reach(part) for _, part in parts or ()) and (gate := self._gate(node, parts or [])):
            raise NotAStream(
                f"is the stream times a gate that is computed from data (by {_words(gate)}) and something added: a skip that "
                "every token weighs for itself is not followed"
            )
        if parts is None or node.value.numel() != self.start.value.numel():
            raise NotAStream(f"is the result of {_words(node)}, which is no sum with its input")
        best = max(self.reach(part) for _, part in parts)
        streams = [(weight, part) for weight, part in parts if best and self.reach(part) == best]
        if len(streams) != 1:
            raise NotAStream(
                "adds the stream to itself"
                if streams
                else f"is the sum of {' and '.join(self.called(part) for _, part in parts)}, without the stream that it was "
                "given: nothing skips its parts"
            )
        weight, stream = streams[0]
        terms = [(w, part) for w, part in parts if part is not stream]
        before = self.steps(stream)
        if terms:
            return [*before, Write(strip(stream), node, terms, weight)]
        return [*before, Weighed(weight, strip(stream), node)] if not weight.is_one else before

    def _gate(self, node: Node, parts: Parts) -> Node | None:
        """What multiplies the stream in one of the parts, where it depends on data."""
        for each in (node, *(strip(part) for _, part in parts)):
            for stream, gate in _weighed_by_data(each):
                if self._through_gates(stream):
                    return strip(gate)
        return None

    def _through_gates(self, node: Node) -> bool:
        """Does a way lead back to the stream if gates count as factors?"""
        node = strip(node)
        if node is self.start:
            return True
        if node.value.numel() != self.start.value.numel():
            return False
        onward = [part for _, part in linear(node) or ()] or [stream for stream, _ in _weighed_by_data(node)]
        return any(self._through_gates(each) for each in onward)

    def terms(self, weight: Weight, node: Node) -> Parts:
        """What is added, as outputs of modules (or constants), each with its weight."""
        if not node.data:
            return [(weight, node)]
        node = strip(node)
        if node in self.returned:
            return [(weight, node)]
        parts = linear(node)
        if parts is None:
            raise NotAStream(f"adds the result of {_words(node)}, which no module of it returns")
        return [found for w, part in parts for found in self.terms(weight.times(w), part)]

    def called(self, node: Node) -> str:
        call = self.returned.get(strip(node))
        return repr(call.name) if call else _words(node)


def _weighed_by_data(node: Node) -> list[tuple[Node, Node]]:
    """(what is weighed, by what) where the weight depends on tokens; both ways round for a product."""
    op, operands = node.op.rstrip("_"), [arg for arg in node.args if isinstance(arg, Node)]
    if op == "lerp" and len(operands) == 3:
        return [(operand, operands[2]) for operand in operands[:2]]
    if op == "mul" and len(operands) == 2 and all(operand.data for operand in operands):
        return [(operands[0], operands[1]), (operands[1], operands[0])]
    return []


def _words(node: Node) -> str:
    return (
        f"{node.op.strip('_')!r}" if node.op != "leaf" else f"the parameter {node.name!r}" if node.name else "an input"
    )


def _named(node: Node) -> str:
    """'gate', 'tanh(gate)', or the operation that made it."""
    node = strip(node)
    if node.op == "leaf":
        return node.name
    inside = [parent for parent in node.parents if parent.op != "leaf" or parent.name]
    return f"{node.op.strip('_')}({', '.join(_named(parent) for parent in inside)})"


def _narrow(node: Node) -> Node:
    """A constant as it was before it was spread over tokens: the next text may have another length."""
    node = strip(node)
    while node.op == "expand" and node.parents:
        node = strip(node.parents[0])
    return node


def constant(parts: Parts) -> Factor | None:
    """The sum of what is added without looking at tokens, as one learned vector."""
    if not parts:
        return None

    def find() -> Tensor | float:
        total: Any = 0.0
        for weight, node in parts:
            total = total + weight.value() * _narrow(node).again()
        return torch.as_tensor(total)

    return Factor(" + ".join(_named(node) for _, node in parts), find)
