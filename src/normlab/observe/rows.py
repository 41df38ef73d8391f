"""Memory traffic and operations of a training step, counted on the meta device: no GPU is needed, and none is asked.

On meta tensors a scheme takes the branch that it would take on a GPU. Every operation that is not a view reads its
arguments and writes its results; a row is tokens x width numbers of the model's type. What the branches do is the same in
every scheme, so the difference to pre_norm of the same shape is the price of the residual path. A registered operation of
ours counts what it must move (ops/depth.py): that its kernel loads nothing twice is tested through the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normlab.model.config import TransformerConfig
from normlab.model.transformer import Transformer

BASE = "pre_norm"
FREE = {
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "alias",
    "lift_fresh",
}
# Launches of a registered operation beyond one: the sum of partial sums, the end of a softmax's derivative.
LAUNCHES = {
    "depth_rms_backward": 2, "depth_keys_backward": 2, "depth_mix_backward": 2, "depth_merge_backward": 2,
    "depth_attend_backward": 4, "depth_stream_read_backward": 2, "depth_stream_write_backward": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Share:
    """Of a pass: rows moved and operations launched, for each sublayer."""

    rows: float
    operations: float

    def __sub__(self, other: Share) -> Share:
        return Share(self.rows - other.rows, self.operations - other.operations)

    def __add__(self, other: Share) -> Share:
        return Share(self.rows + other.rows, self.operations + other.operations)


@dataclass(frozen=True)
class Traffic:
    forward: Share
    backward: Share

    @property
    def training(self) -> Share:
        return self.forward + self.backward

    def beyond(self, base: Traffic) -> Traffic:
        return Traffic(self.forward - base.forward, self.backward - base.backward)


@dataclass
class Counter(TorchDispatchMode):
    """Bytes and operations of all that runs inside."""

    size: int = 0
    operations: int = 0
    by_name: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in FREE:
            given, made = list(tensors((args, kwargs))), list(tensors(found))
            if not (len(made) == 1 and any(made[0] is one for one in given)):  # in place: written where it was read
                given += made
            moved = sum(size_of(one) for one in given)
            self.size += moved
            self.operations += LAUNCHES.get(name, 1)
            self.by_name[name] = self.by_name.get(name, 0) + moved
        return found


def tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def size_of(x: Tensor) -> int:
    """Bytes that must be touched: what is broadcast is there once."""
    numbers = 1
    for length, stride in zip(x.shape, x.stride(), strict=True):
        numbers *= length if stride or length == 0 else 1
    return numbers * x.element_size()


def counted(run: Callable[[], Tensor]) -> tuple[Counter, Counter]:
    """The forward pass and the backward pass of what `run` gives, a loss."""
    with Counter() as forward:
        loss = run()
    with Counter() as backward:
        loss.backward()
    return forward, backward


def traffic(config: TransformerConfig, *, tokens: int, length: int, dtype: torch.dtype = torch.bfloat16) -> Traffic:
    """Rows and operations of a training step for each sublayer, the branches' included."""
    with torch.device("meta"):
        model = Transformer(config).to(dtype)
        ids = torch.zeros(max(1, tokens // length), length, dtype=torch.long)
        forward, backward = counted(lambda: model(ids).sum())
    row = ids.numel() * config.dim * dtype.itemsize * len(model.sites)
    count = len(model.sites)
    return Traffic(*(Share(one.size / row, one.operations / count) for one in (forward, backward)))


def beyond_pre_norm(
    config: TransformerConfig, *, tokens: int, length: int, dtype: torch.dtype = torch.bfloat16
) -> Traffic:
    """What a scheme moves and launches more than pre_norm of the same shape does."""
    base = TransformerConfig.from_dict({**config.to_dict(), "scheme": {"name": BASE}})
    ours, theirs = (traffic(one, tokens=tokens, length=length, dtype=dtype) for one in (config, base))
    return ours.beyond(theirs)
