"""Gradients of sources, added up in place by all who read them, where C does the adding (depth_reads.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor


class Gather:
    """The gradient of one source, added up in place by all who read it; `_Keys`, whose backward comes last, takes the sum.

    A reader may add only if it was given the very tensor that the reader before it handed on: a copy, a detached tensor or
    one from another stage belongs to another graph, and its gradient has to go the ordinary way. The sum belongs to one
    backward call; another call on the same graph that finds it taken up goes the ordinary way too.
    """

    __slots__ = ("call", "last", "total")

    def __init__(self) -> None:
        self.last: ref[Tensor] | None = None
        self.total: Tensor | None = None
        self.call = -1

    def hands_on(self, v: Tensor) -> None:
        self.last = ref(v)

    def follows(self, v: Tensor) -> bool:
        return self.last is not None and self.last() is v

    def room(self, like: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Where to write, and what is there already; None: this call may not."""
        call = torch._C._current_graph_task_id()
        if self.total is None:
            self.call, self.total = call, torch.empty_like(like, memory_format=torch.contiguous_format)
            return self.total, None
        return (self.total, self.total) if self.call == call else None

    def take(self) -> Tensor | None:
        if self.total is None or self.call != torch._C._current_graph_task_id():
            return None
        total, self.total = self.total, None
        return total


Gathers = Sequence[Gather | None]


def followed(gathers: Gathers, sources: Sequence[Tensor]) -> Gathers:
    """Those to which readers of these tensors may add."""
    if not gathers:
        return [None] * len(sources)
    return [g if g is not None and g.follows(v) else None for g, v in zip(gathers, sources, strict=True)]


def hand_on(gathers: Gathers, sources: Sequence[Tensor]) -> None:
    for gather, v in zip(gathers, sources, strict=True):
        if gather is not None:
            gather.hands_on(v)


class Room(NamedTuple):
    """Where the gradient of a source is written, what joins it there, and what is returned for it to autograd."""

    place: Tensor
    joins: Tensor | None
    returned: Tensor | None


def rooms_for(gathers: Gathers, sources: Sequence[Tensor], through: Sequence[Tensor | None]) -> list[Room]:
    """A gradient that came through goes on as it is where the rest is gathered."""
    found = []
    for gather, v, past in zip(gathers, sources, through, strict=True):
        kept = None if gather is None else gather.room(v)
        if kept is None:
            place = torch.empty_like(v, memory_format=torch.contiguous_format)
            found.append(Room(place, past, place))
        else:
            found.append(Room(*kept, past))
    return found
