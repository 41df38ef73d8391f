"""What branches do, seen from outside: an FFN reads token by token, and no two branches add the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.table import Real
from normlab.probes.trace.hooks import Layout, Record, slow_path
from normlab.probes.trace.roles import module_path

REPEATED = 0.9999  # cosine between what two branches add
_MOST = 1 << 16  # entries of each branch that are compared


@dataclass(frozen=True)
class TokenRow:
    """How far an FFN is from reading each token by itself: its outputs for tokens in reverse order, put back."""

    layer: int
    mixing: Real


@dataclass(frozen=True)
class RepeatRow:
    """Two layers of which a branch adds the same, to the last digit."""

    kind: str
    layer: int
    next: int
    cosine: Real


@torch.no_grad()
def read_functions(layout: Layout, run: Callable[[], object]) -> tuple[tuple[TokenRow, ...], tuple[RepeatRow, ...]]:
    """Two small passes, in one of which every FFN is called twice more."""
    tokens: list[TokenRow] = []
    added: dict[str, list[tuple[int, Tensor]]] = {}
    busy = False

    def turned(index: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            nonlocal busy
            if busy or kwargs or len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
                return
            if args[0].dim() < 2 or output.shape[:-1] != args[0].shape[:-1]:
                return
            busy = True
            try:
                same, other = module(args[0]), module(args[0].flip(-2))
            finally:
                busy = False
            # Where it is left to chance, or does not depend on what is read, order says nothing.
            if _apart(same, output) < 1e-6 < _apart(other, output):
                tokens.append(TokenRow(index, _apart(other.flip(-2), output)))

        return hook

    def keep(record: Record) -> None:
        for part in record.parts:
            flat = part.added.detach().flatten()[:_MOST].double()
            added.setdefault(part.kind, []).append((record.index, flat / flat.norm().clamp_min(1e-300)))

    with layout.tracer(keep), slow_path():
        run()
    handles = []
    for index, (_, layer) in enumerate(layout.layers):
        branches = layout.roles[id(layer)].branches if id(layer) in layout.roles else ()
        names = [name for b in branches if b.kind == "ffn" for name in (b.core, b.added) if name]
        parts = [layer.get_submodule(name) for name in dict.fromkeys(map(module_path, names))]
        handles += [part.register_forward_hook(turned(index), with_kwargs=True) for part in parts]
    with slow_path(handles):
        run()
    return tuple(tokens), _repeats(added)


def _repeats(added: dict[str, list[tuple[int, Tensor]]]) -> tuple[RepeatRow, ...]:
    found = []
    for kind, branches in added.items():
        for place, (layer, mine) in enumerate(branches):
            for other, theirs in branches[place + 1 :]:
                if mine.shape == theirs.shape and (cosine := float(mine @ theirs)) > REPEATED:
                    found.append(RepeatRow(kind, layer, other, cosine))
    return tuple(found)


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-30))
