"""Where the tensors of fast reads lie: side by side, so that a batched product over them copies nothing.

`Shelf` holds the sources of Block, `Basket` the gradients of a block's outputs. Neither is needed for a right result:
`beside` takes a view where its tensors happen to be neighbours, and copies where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def beside(tensors: Sequence[Tensor]) -> Tensor:
    """[tokens, d] tensors as one [tokens, n, d]: a view where they are neighbours in one `Shelf`, else a passing copy."""
    first, d = tensors[0], tensors[0].shape[-1]
    start, stride = first.data_ptr(), first.stride()
    step = d * first.element_size()
    if (
        len(tensors) > 1
        and stride[1] == 1
        and stride[0] >= d * len(tensors)
        and all(
            t.data_ptr() == start + i * step and t.stride() == stride and t.dtype == first.dtype
            for i, t in enumerate(tensors)
        )
        and tensors[-1].untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    ):
        return first.as_strided((len(first), len(tensors), d), (stride[0], d, 1))
    return torch.stack(tuple(tensors), dim=1)


class Shelf:
    """Room for n tensors [tokens, d] side by side, so that a batched product over them needs no copy.

    A place is given away once. Streams are values, and one may be continued twice: the second time, or when the shelf
    is full, the tensor stays where it is, and `beside` copies.
    """

    def __init__(self, like: Tensor, places: int) -> None:
        self.room = like.new_empty(like.shape[0], places, like.shape[-1])
        self.taken = 0

    def place(self, n: int) -> Tensor | None:
        """Place n as a tensor of its own (not a view to autograd), or None if it is taken."""
        if n != self.taken or n >= self.room.shape[1]:
            return None
        self.taken += 1
        return _alias(self.room[:, n])


def _alias(x: Tensor) -> Tensor:
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


class Basket:
    """Where the gradients of a block's outputs are collected side by side, for the batched products of `_Mix`.

    A place is given away once, until the basket is emptied: a stream that was continued twice gives one output two
    gradients, and the second is added by autograd as usual.
    """

    def __init__(self, count: int) -> None:
        self.count, self.room, self.taken = count, cast(Tensor | None, None), set[int]()

    def place(self, n: int, like: Tensor) -> Tensor | None:
        if n in self.taken:
            return None
        if self.room is None:
            self.room = like.new_empty(like.shape[0], self.count, like.shape[-1])
        self.taken.add(n)
        return _alias(self.room[:, n])

    def empty(self, grads: Sequence[Tensor]) -> Tensor:
        """All gradients, [tokens, count, d]; what is not in its place yet is copied there."""
        room, self.room, self.taken = self.room, None, set()
        if room is None:
            return beside(grads)
        for n, grad in enumerate(grads):
            if grad.data_ptr() != room[:, n].data_ptr():
                room[:, n].copy_(grad)
        return room


def shelve(x: Tensor, y: Tensor | None, shelf: Shelf, n: int) -> Tensor:
    """x + y, or x, in the place n of the shelf."""
    return _Shelve.apply(x, y, shelf, n)


class _Shelve(torch.autograd.Function):
    """The sum x + y with a given address."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, shelf: Shelf, n: int) -> Tensor:
        place = shelf.place(n)
        ctx.both = y is not None
        if place is None:
            return x.clone() if y is None else x + y
        return place.copy_(x) if y is None else torch.add(x, y, out=place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return grad, grad if ctx.both else None, None, None
