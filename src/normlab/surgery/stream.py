"""The value that flows through Hugging Face's own loop in place of `hidden_states`.

A Hugging Face layer does three things with its hidden states: it passes them on, gives them to a norm, and computes
`residual + y`. A `Stream` stands in their place: what meets a norm (or a branch) is `scheme.read`, `+` is
`scheme.write`, the first layer opens it and the last one closes it. Their forward code runs unchanged.

It is a value and no side object: gradient checkpointing runs a layer twice, and two threads may share a model. It is a
dataclass because FSDP looks for tensors inside of tensors, tuples, dictionaries and dataclasses only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor

from normlab.errors import UnsupportedError
from normlab.schemes.base import Carry, Parts, Scheme, Site, tensors_of
from normlab.schemes.base import Stream as State

_ADDITIONS = {torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__radd__}


class Verbs(Protocol):
    """A scheme, called with the name of a verb and its arguments: so the hooks of offloading and the wrappers of PEFT act."""

    @overload
    def __call__(self, verb: Literal["open"], x: Tensor, /) -> State: ...
    @overload
    def __call__(self, verb: Literal["read"], state: State, site: Site, /) -> tuple[Tensor, Carry]: ...
    @overload
    def __call__(self, verb: Literal["write"], state: State, y: Tensor, carry: Carry, site: Site, /) -> State: ...
    @overload
    def __call__(self, verb: Literal["close"], state: State, /) -> Tensor: ...
    @overload
    def __call__(self, verb: Literal["to_parts"], state: State, /) -> Parts: ...
    @overload
    def __call__(self, verb: Literal["from_parts"], parts: Parts, like: State, site: Site | None, /) -> State: ...


class StreamPlan:
    """What the stream must know of its model: the sites, and how each branch joins.

    No dataclass: FSDP would take it apart and build it again at every layer.
    """

    def __init__(self, sites: tuple[Site, ...], joins: tuple[str, ...]) -> None:
        self.sites = sites
        self.joins = (
            joins  # per site: "" at once; at the norm behind it: "adds" N(h + y) - h, or "norms" the stream itself
        )


@dataclass(eq=False)
class Stream:
    """The stream in front of branch `index`. `seen`: the read h and its carry; `summed`: y, until the norm behind it."""

    scheme: Verbs
    plan: StreamPlan
    state: State
    index: int = 0
    seen: tuple[Tensor, Carry] | None = None
    summed: Tensor | None = None

    @classmethod
    def opened(cls, scheme: Verbs, plan: StreamPlan, x: Tensor) -> Stream:
        return cls(scheme, plan, scheme("open", x))

    @property
    def site(self) -> Site:
        return self.plan.sites[self.index]

    def fresh(self) -> Stream:
        """The same value, read by nobody: a layer may run twice."""
        return Stream(self.scheme, self.plan, self.state, self.index)

    # -- the verbs ---------------------------------------------------------------------------------------------------
    def read(self) -> Tensor:
        """What the branch sees in front of its norm; parallel branches see the same."""
        if self.seen is None:
            if self.index >= len(self.plan.sites):
                raise UnsupportedError("a branch reads the stream behind its last layer: this layout is not known")
            self.seen = self.scheme("read", self.state, self.site)
        return self.seen[0]

    def __add__(self, y: Tensor) -> Stream:
        return self.plus(y)

    def __radd__(self, y: Tensor) -> Stream:
        return self.plus(y)

    def plus(self, y: object) -> Stream:
        """residual + y. By a name of its own: under a compiler the operator would come back through torch again."""
        if not isinstance(y, Tensor):
            raise UnsupportedError(
                f"a branch of this model adds a {type(y).__name__} to the residual stream, not a tensor"
            )
        if self.seen is None:
            raise UnsupportedError(
                f"branch {self.index} is added to the stream, but nothing has read the stream for it: this layout is "
                "not known"
            )
        if self.plan.joins[self.index]:
            return Stream(self.scheme, self.plan, self.state, self.index, self.seen, y)
        return self._written(y)

    def joined(self, norm: Callable[[Tensor], Tensor]) -> Stream:
        """The norm behind the addition has arrived."""
        y, seen = self.summed, self.seen
        if y is None or seen is None:
            raise UnsupportedError("a norm that stands behind an addition was given the stream without one")
        if self.plan.joins[self.index] == "adds":
            return self._written(norm(seen[0] + y.reshape(seen[0].shape)) - seen[0])
        after = self._written(y)
        return Stream(self.scheme, self.plan, norm(after.state), after.index)

    def _written(self, y: Tensor) -> Stream:
        assert self.seen is not None
        h, carry = self.seen
        if y.shape != h.shape:
            y = y.reshape(h.shape)  # OPT flattens its tokens
        state = self.scheme("write", self.state, y, carry, self.site)
        return Stream(self.scheme, self.plan, state, self.index + 1)

    def closed(self) -> Tensor:
        return self.scheme("close", self.state)

    def hidden(self) -> Tensor:
        """A hidden state, for `output_hidden_states`: what the next branch is given in front of its norm."""
        if isinstance(self.state, Tensor) and self.state.dim() == 3:
            return self.state
        return self.closed() if self.index == len(self.plan.sites) else self.fresh().read()

    # -- as plain tensors, for reentrant checkpointing, which sees no others -------------------------------------------
    def parts(self) -> Parts:
        return self.scheme("to_parts", self.state)

    def skeleton(self) -> State:
        """The structure of the state without its numbers."""
        nothing = torch.empty(0, device="meta")
        return Scheme.from_parts(None, Parts((), tuple(nothing for _ in tensors_of(self.state))), self.state, None)  # type: ignore[arg-type]

    def rebuilt(self, parts: Parts, like: State) -> Stream:
        site = self.site if self.index < len(self.plan.sites) else None
        return Stream(self.scheme, self.plan, self.scheme("from_parts", parts, like, site), self.index)

    # -- what layers ask of their hidden states ------------------------------------------------------------------------
    @property
    def _tensor(self) -> Tensor:
        return next(tensors_of(self.state))

    @property
    def shape(self) -> torch.Size:
        whole = self._tensor.shape
        return torch.Size((*whole[:2], whole[-1]))  # n streams stand between tokens and channels

    @property
    def dtype(self) -> torch.dtype:
        return self._tensor.dtype

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    @property
    def ndim(self) -> int:
        return 3

    def dim(self) -> int:
        return 3

    def size(self, at: int | None = None) -> torch.Size | int:
        return self.shape if at is None else self.shape[at]

    def reshape(self, *_: object) -> Stream:
        return self

    view = reshape

    def contiguous(self) -> Stream:
        return self

    def to(self, *args: Any, **kwargs: Any) -> Stream:
        """To another device. What is there already is handed on as it is: a copy would forget that it was read."""
        device = kwargs.get("device", args[0] if args else None)
        if device is None or isinstance(device, torch.dtype) or torch.device(device) == self.device:
            return self
        moved = Parts((), tuple(t.to(*args, **kwargs) for t in tensors_of(self.state)))
        state = Scheme.from_parts(None, moved, self.state, None)  # type: ignore[arg-type]
        return Stream(self.scheme, self.plan, state, self.index)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Stream:
        if function in _ADDITIONS and len(args) == 2 and not kwargs:
            stream, y = args if isinstance(args[0], Stream) else args[::-1]
            assert isinstance(stream, Stream)
            return stream.plus(y)
        name = getattr(function, "__name__", str(function))
        raise UnsupportedError(
            f"the residual stream of this model is no single tensor, and {name} was called on it; a layer may pass it "
            "on, norm it and add to it"
        )
