"""Hooks that let a stream flow through unchanged forward code. Each is a class at the top of this file, without a
scheme inside: a model must pickle and deep-copy, and PEFT must be able to put another scheme in the place of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.schemes.base import Parts
from normlab.surgery.stream import Stream

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Enters:
    """Before a layer: the first opens the stream, the others take it as a fresh value and see that they are in order."""

    def __init__(self, layer: int, first: int, owner: nn.Module) -> None:
        self.layer, self.first, self.owner = layer, first, owner

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if args:
            return (self.enter(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self.enter(kwargs["hidden_states"])}

    def enter(self, value: Any) -> Stream:
        owner: Any = self.owner
        if isinstance(value, Stream):
            if value.index != self.first:
                raise UnsupportedError(
                    f"layer {self.layer} was given the stream in front of branch {value.index}, not of branch "
                    f"{self.first}: layers of a swapped model cannot be skipped or reordered; "
                    "take them out with nl.prune before the swap"
                )
            return value.fresh()
        if self.layer:
            raise UnsupportedError(
                f"layer {self.layer} of a swapped model was given a tensor; only layer 0 opens the residual stream"
            )
        return Stream.opened(owner.scheme, owner.splice, value)


class Closes:
    """After the last layer: the stream becomes a tensor again."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0].closed(), *output[1:])
        return output.closed()


class Reads:
    """In front of a norm, or of a branch without one: the stream is read."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        given = tuple(value.read() if isinstance(value, Stream) else value for value in args)
        named = {key: value.read() if isinstance(value, Stream) else value for key, value in kwargs.items()}
        return given, named


class Times:
    """Behind a norm: the fixed number c of x <- x + F(c N(x))."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * self.factor


class Joins:
    """The forward of a norm that stands behind the addition: only there is known what the branch adds."""

    def __init__(self, norm: nn.Module) -> None:
        self.norm = norm

    def __call__(self, x: Any) -> Any:
        return x.joined(self.plain) if isinstance(x, Stream) else self.plain(x)

    def plain(self, x: Tensor) -> Tensor:
        found: Tensor = type(self.norm).forward(self.norm, x)  # type: ignore[attr-defined]
        return found


class Shows:
    """After the model: where hidden states were asked for, streams become tensors."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(_shown(part) for part in output)
        if isinstance(output, dict) and output.get("hidden_states") is not None:
            output["hidden_states"] = _shown(output["hidden_states"])
        return output


class Fetches:
    """Before a verb: parameters that lie in a list or dictionary are nobody's call, so offloading would not bring them."""

    def __init__(self, boxes: tuple[nn.Module, ...]) -> None:
        self.boxes = boxes

    def __call__(self, module: nn.Module, args: Any) -> None:
        for box in self.boxes:
            hook: Any = getattr(box, "_hf_hook", None)
            if hook is not None:
                hook.pre_forward(box)


class Returns(Fetches):
    """After a verb: they go back."""

    def __call__(self, module: nn.Module, args: Any, output: Any = None) -> None:
        for box in self.boxes:
            hook: Any = getattr(box, "_hf_hook", None)
            if hook is not None:
                hook.post_forward(box, None)


def _shown(value: Any) -> Any:
    if isinstance(value, Stream):
        return value.hidden()
    return tuple(_shown(part) for part in value) if type(value) is tuple else value


class Checkpointed:
    """A checkpointing function that is handed tensors only: the reentrant kind loses the gradients of all others."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, run: Callable[..., Any], *args: Any) -> Any:
        taken, tensors = _apart(args)
        returned: list[Any] = []

        def inside(*flat: Any) -> tuple[Any, ...]:
            result = run(*_together(taken, flat))
            wrapped = result if isinstance(result, tuple) else (result,)
            pieces, flat_out = _apart(wrapped)
            if not returned:  # when the layer runs again, its structure is known
                returned.extend((pieces, isinstance(result, tuple)))
            return flat_out

        flat_out = self.function(inside, *tensors)
        pieces, several = returned
        result = _together(pieces, flat_out if isinstance(flat_out, tuple) else (flat_out,))
        return result if several else result[0]


class _Piece:
    """How a stream is put together again, and from how many tensors."""

    def __init__(self, stream: Stream, settled: int, moving: int) -> None:
        self.like, self.settled, self.moving = stream.skeleton(), settled, moving
        self.empty = Stream(stream.scheme, stream.plan, None, stream.index)

    def together(self, flat: list[Tensor]) -> Stream:
        settled = tuple(flat.pop(0) for _ in range(self.settled))
        return self.empty.rebuilt(Parts(settled, tuple(flat.pop(0) for _ in range(self.moving))), self.like)


def _apart(values: tuple[Any, ...]) -> tuple[list[_Piece | None], tuple[Any, ...]]:
    """Values with every stream laid out as its tensors."""
    pieces: list[_Piece | None] = []
    flat: list[Any] = []
    for value in values:
        if isinstance(value, Stream):
            parts = value.parts()
            pieces.append(_Piece(value, len(parts.settled), len(parts.moving)))
            flat += [*parts.settled, *parts.moving]
        else:
            pieces.append(None)
            flat.append(value)
    return pieces, tuple(flat)


def _together(pieces: list[_Piece | None], flat: tuple[Any, ...]) -> tuple[Any, ...]:
    left = list(flat)
    return tuple(left.pop(0) if piece is None else piece.together(left) for piece in pieces)


HOOKS = (Enters, Closes, Reads, Times, Shows)
