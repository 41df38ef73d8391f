"""Hooks that let a stream flow through unchanged forward code. Each is a class at the top of this file, without a
scheme inside: a model must pickle and deep-copy, and PEFT must be able to put another scheme in the place of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.schemes.base import Parts
from normlab.surgery.stream import Stream, StreamPlan, Verbs

Values = tuple[object, ...]  # what a layer is given or answers: a stream or tensors, masks, caches
Named = dict[str, object]
HIDDEN = "hidden_states"  # their name for the stream


class Owner(Protocol):
    """The model that holds the layers, as `splice` leaves it."""

    scheme: Verbs
    splice: StreamPlan


class Offload(Protocol):
    """accelerate's hook of a module whose parameters lie elsewhere."""

    def pre_forward(self, module: nn.Module) -> object: ...
    def post_forward(self, module: nn.Module, output: object) -> object: ...


class Enters:
    """Before a layer: the first opens the stream, the others take it as a fresh value and see that they are in order."""

    def __init__(self, layer: int, first: int, owner: Owner) -> None:
        self.layer, self.first, self.owner = layer, first, owner

    def __call__(self, module: nn.Module, args: Values, kwargs: Named) -> tuple[Values, Named]:
        if args:
            return (self.enter(args[0]), *args[1:]), kwargs
        return args, {**kwargs, HIDDEN: self.enter(kwargs[HIDDEN])}

    def enter(self, value: object) -> Stream:
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
        assert isinstance(value, Tensor)
        return Stream.opened(self.owner.scheme, self.owner.splice, value)


class Closes:
    """After the last layer: the stream becomes a tensor again."""

    def __call__(
        self, module: nn.Module, args: Values, output: Stream | tuple[Stream, ...]
    ) -> Tensor | tuple[object, ...]:
        if isinstance(output, tuple):
            return (output[0].closed(), *output[1:])
        return output.closed()


class Reads:
    """In front of a norm, or of a branch without one: the stream is read."""

    def __call__(self, module: nn.Module, args: Values, kwargs: Named) -> tuple[Values, Named]:
        if len(args) == 1 and isinstance(stream := args[0], Stream) and not kwargs:  # nearly always
            return (stream.read(),), kwargs
        given = tuple(value.read() if isinstance(value, Stream) else value for value in args)
        named = {key: value.read() if isinstance(value, Stream) else value for key, value in kwargs.items()}
        return given, named


class Scales:
    """Behind a norm: the fixed number c of x <- x + F(c N(x))."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: Values, output: Tensor) -> Tensor:
        return output * self.factor


class Joins:
    """The forward of a norm that stands behind the addition: only there is known what the branch adds."""

    def __init__(self, norm: nn.Module) -> None:
        self.norm = norm

    def __call__(self, x: Stream | Tensor) -> Stream | Tensor:
        return x.joined(self.plain) if isinstance(x, Stream) else self.plain(x)

    def plain(self, x: Tensor) -> Tensor:
        found: Tensor = type(self.norm).forward(self.norm, x)  # type: ignore[attr-defined]
        return found


class Shows:
    """After the model: where hidden states were asked for, streams become tensors."""

    def __call__(self, module: nn.Module, args: Values, output: object) -> object:
        if isinstance(output, tuple):
            return tuple(_shown(part) for part in output)
        if isinstance(output, dict) and output.get(HIDDEN) is not None:
            output[HIDDEN] = _shown(output[HIDDEN])
        return output


class Fetches:
    """Before a verb: parameters that lie in a list or dictionary are nobody's call, so offloading would not bring them."""

    def __init__(self, boxes: tuple[nn.Module, ...]) -> None:
        self.boxes = boxes

    def __call__(self, module: nn.Module, args: Values) -> None:
        for box in self.boxes:
            hook: Offload | None = getattr(box, "_hf_hook", None)
            if hook is not None:
                hook.pre_forward(box)


class Returns(Fetches):
    """After a verb: they go back."""

    def __call__(self, module: nn.Module, args: Values, output: object = None) -> None:
        for box in self.boxes:
            hook: Offload | None = getattr(box, "_hf_hook", None)
            if hook is not None:
                hook.post_forward(box, None)


def _shown(value: object) -> object:
    if isinstance(value, Stream):
        return value.hidden()
    return tuple(_shown(part) for part in value) if type(value) is tuple else value


class Checkpointed:
    """A checkpointing function that is handed tensors only: the reentrant kind loses the gradients of all others."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, run: Callable[..., object], *args: object) -> object:
        taken, tensors = _apart(args)
        returned: list[tuple[Pieces, bool]] = []

        def inside(*flat: object) -> Values:
            result = run(*_together(taken, flat))
            wrapped = result if isinstance(result, tuple) else (result,)
            pieces, flat_out = _apart(wrapped)
            if not returned:  # when the layer runs again, its structure is known
                returned.append((pieces, isinstance(result, tuple)))
            return flat_out

        flat_out = self.function(inside, *tensors)
        [(pieces, several)] = returned
        result = _together(pieces, flat_out if isinstance(flat_out, tuple) else (flat_out,))
        return result if several else result[0]


class _Piece:
    """How a stream is put together again, and from how many tensors."""

    def __init__(self, stream: Stream, settled: int, moving: int) -> None:
        self.like, self.settled, self.moving = stream.skeleton(), settled, moving
        self.empty = Stream(stream.scheme, stream.plan, None, stream.index)

    def together(self, flat: list[object]) -> Stream:
        settled = tuple(_tensor(flat.pop(0)) for _ in range(self.settled))
        return self.empty.rebuilt(Parts(settled, tuple(_tensor(flat.pop(0)) for _ in range(self.moving))), self.like)


Pieces = list[_Piece | None]


def _apart(values: Values) -> tuple[Pieces, Values]:
    """Values with every stream laid out as its tensors."""
    pieces: Pieces = []
    flat: list[object] = []
    for value in values:
        if isinstance(value, Stream):
            parts = value.parts()
            pieces.append(_Piece(value, len(parts.settled), len(parts.moving)))
            flat += [*parts.settled, *parts.moving]
        else:
            pieces.append(None)
            flat.append(value)
    return pieces, tuple(flat)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _together(pieces: Pieces, flat: Values) -> Values:
    left = list(flat)
    return tuple(left.pop(0) if piece is None else piece.together(left) for piece in pieces)


HOOKS = (Enters, Closes, Reads, Scales, Shows)
