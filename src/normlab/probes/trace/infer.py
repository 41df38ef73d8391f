"""What does an unknown layer add to the stream? Watch one forward pass and look for the sum that explains it.

Every submodule's input and output is recorded for one layer. Starting from the layer's input, a branch is a module
whose output, added to the stream, gives either what the layer returns, or what a later norm reads (an out-norm), or
what any later module reads (the stream goes on). The search is over values, so names do not matter; the identity
check then runs on every layer as for a known row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.trace.hooks import slow_path
from normlab.probes.trace.roles import BranchRoles, LayerRoles
from normlab.probes.trace.tensors import first_tensor, mismatch

_CLOSE = 1e-3
_DEEPEST = 4  # branches in one layer


@dataclass
class _Seen:
    name: str
    module: nn.Module
    start: int
    end: int
    read: Tensor
    wrote: Tensor

    @property
    def is_norm(self) -> bool:
        kind = type(self.module).__name__.lower()
        return "norm" in kind or kind in ("dyt", "dynamictanh")


def infer_roles(layer: nn.Module, run: Callable[[], object]) -> LayerRoles | None:
    """A row that explains this layer's output on this data, or None."""
    seen, before, after = _watch(layer, run)
    if before is None or after is None:
        return None
    seen = [item for item in seen if item.wrote.numel() == before.numel() and item.wrote.shape[-1] == before.shape[-1]]
    # Outer modules first: of a dropout and the block that ends with it, the block is the one to name.
    seen.sort(key=lambda item: (item.name.count("."), item.start))
    branches = _explain(seen, before, after, since=-1, depth=0)
    return None if branches is None else LayerRoles(type(layer).__name__, tuple(branches), inferred=True)


def _watch(layer: nn.Module, run: Callable[[], object]) -> tuple[list[_Seen], Tensor | None, Tensor | None]:
    seen: list[_Seen] = []
    ends: dict[str, Tensor] = {}
    clock = iter(range(1 << 30))
    open_calls: dict[str, tuple[int, Tensor]] = {}

    def enter(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: object, kwargs: object) -> None:
            try:
                open_calls[name] = (next(clock), first_tensor((args, kwargs)).detach().clone())
            except NotImplementedError:  # a module without a tensor to look at is no candidate
                open_calls.pop(name, None)

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _args: object, output: object) -> None:
            if name not in open_calls:
                return
            start, read = open_calls.pop(name)
            try:
                wrote = first_tensor(output).detach().clone()
            except NotImplementedError:
                return
            if name == "":
                ends.setdefault("before", read)
                ends.setdefault("after", wrote)
            elif "after" not in ends:  # a shared block is watched in its first call
                seen.append(_Seen(name, module, start, next(clock), read, wrote))

        return hook

    handles = []
    for name, module in layer.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name), with_kwargs=True, prepend=name == ""))
        handles.append(module.register_forward_hook(leave(name)))
    try:
        with torch.no_grad(), slow_path():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return seen, ends.get("before"), ends.get("after")


def _explain(seen: list[_Seen], stream: Tensor, after: Tensor, *, since: int, depth: int) -> list[BranchRoles] | None:
    if depth >= _DEEPEST:
        return None
    for item in seen:
        if item.end <= since or float(item.wrote.norm()) <= 1e-6 * float(stream.norm()):
            continue
        added = item.wrote.reshape(stream.shape)
        summed = stream + added
        for out in [None, *(norm for norm in seen if norm.is_norm and norm.start > item.end)]:
            if out is not None and not _same(out.read, summed, added):
                continue
            end = summed if out is None else out.wrote.reshape(stream.shape)
            branch = _branch(seen, item, out, stream, depth)
            if _same(end, after, added):
                return [branch]
            goes_on = out is not None or any(other.start > item.end and _same(other.read, end, added) for other in seen)
            if goes_on:
                rest = _explain(seen, end, after, since=item.end, depth=depth + 1)
                if rest is not None:
                    return [branch, *rest]
    return _parallel(seen, stream, after, since, depth)


def _parallel(seen: list[_Seen], stream: Tensor, after: Tensor, since: int, depth: int) -> list[BranchRoles] | None:
    live = [item for item in seen if item.end > since]
    for first in live:
        for second in live:
            apart = not (first.name + ".").startswith(second.name + ".") and not (second.name + ".").startswith(
                first.name + "."
            )
            if first.end >= second.end or not apart:
                continue
            change = first.wrote.reshape(stream.shape) + second.wrote.reshape(stream.shape)
            if _same(stream + change, after, change):
                one, two = _branch(seen, first, None, stream, depth), _branch(seen, second, None, stream, depth + 1)
                return [one, BranchRoles(two.kind, two.added, two.core, pre=two.pre, res=two.res, parallel=True)]
    return None


def _branch(seen: list[_Seen], item: _Seen, out: _Seen | None, stream: Tensor, depth: int) -> BranchRoles:
    core = item
    if item.is_norm:
        core = next(
            (other for other in seen if other.end < item.start and _same(other.wrote, item.read, item.read)), item
        )
    pre = next(
        (n for n in seen if n.is_norm and n.end < core.end and n is not item and _same(n.read, stream, stream)), None
    )
    names = f"{core.name} {type(core.module).__name__} " + " ".join(
        f"{name} {type(child).__name__}" for name, child in core.module.named_modules()
    )
    kind = "attention" if "att" in names.lower() else "ffn"
    return BranchRoles(
        kind,
        item.name,
        core.name if core is not item else "",
        pre=pre.name if pre is not None else "",
        res=item.name if item.is_norm else "",
        out=out.name if out is not None else "",
    )


def _same(measured: Tensor, expected: Tensor, change: Tensor) -> bool:
    if measured.numel() != expected.numel() or not bool(torch.isfinite(measured).all()):
        return False
    return mismatch(measured, expected, change) < _CLOSE
