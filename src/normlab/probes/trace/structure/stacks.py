"""Where the layers of a model are: modules that are called one after the other, and return what they are given.

A stack is a list of modules (lists inside lists too, and a block that stands in it several times) of which each call
returns a tensor of the shape that it was given. An encoder-decoder has two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from normlab.probes.trace.hooks import slow_path
from normlab.probes.trace.tensors import maybe_tensor

Named = tuple[str, nn.Module]
_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass(frozen=True)
class Stack:
    """Layers in the order of their first call; a shared block stands in it once, and is called `calls` times."""

    name: str
    layers: tuple[Named, ...]
    calls: int
    batch_first: bool = True

    @property
    def half(self) -> str:
        """'encoder' or 'decoder', else where the layers are."""
        parts = self.name.lower().split(".")
        found = next((part for part in reversed(parts) if "encoder" in part or "decoder" in part), "")
        return "encoder" if "encoder" in found else "decoder" if "decoder" in found else self.name

    @property
    def size(self) -> int:
        return sum(parameter.numel() for _, layer in self.layers for parameter in layer.parameters())


def members(name: str, container: nn.Module) -> Iterator[Named]:
    """The modules of a list and of lists inside it, the same one as often as it stands there."""
    for key, child in container._modules.items():
        path = f"{name}.{key}" if name else key
        if isinstance(child, _LISTS):
            yield from members(path, child)
        elif child is not None:
            yield path, child


def find_stacks(model: nn.Module, run: Callable[[], object], known: Callable[[nn.Module], bool]) -> list[Stack]:
    """The stacks that a forward pass goes through, in that order. `known` says what the table of rows has."""
    calls, tokens = _calls(model, run)
    kept: list[Stack] = []
    for name, container in model.named_modules():
        if not isinstance(container, _LISTS) or any(
            _inside(name, layer) for stack in kept for layer, _ in stack.layers
        ):
            continue
        if any(_inside(name, stack.name) for stack in kept):
            continue
        found = [(path, layer) for path, layer in members(name, container) if calls.get(id(layer))]
        stack = _stack(name, _known_inside(found, calls, known) or found, calls, tokens, known)
        if stack is not None:
            kept.append(stack)
    if not kept:
        kept = _repeated(model, calls, tokens, known)
    return sorted(kept, key=lambda stack: calls[id(stack.layers[0][1])][0].order)


@dataclass(frozen=True)
class _Called:
    order: int
    given: tuple[int, ...]
    returned: tuple[int, ...]

    @property
    def keeps(self) -> bool:
        return len(self.given) == 3 and self.given == self.returned  # [batch, tokens, d]; images have one axis more

    @property
    def keeps_streams(self) -> bool:
        return len(self.given) == 4 and self.given == self.returned


def _calls(model: nn.Module, run: Callable[[], object]) -> tuple[dict[int, list[_Called]], tuple[int, ...]]:
    """Every call of every module by shapes, and the shape [batch, tokens] of the ids that the embedding reads."""
    calls: dict[int, list[_Called]] = {}
    given: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    ids: list[tuple[int, ...]] = []
    order = iter(range(1 << 30))

    def enter(module: nn.Module, args: tuple[object, ...], kwargs: object) -> None:
        tensor = maybe_tensor((args, kwargs))
        given.setdefault(id(module), []).append((next(order), () if tensor is None else tuple(tensor.shape)))
        if isinstance(module, nn.Embedding) and args and isinstance(args[0], torch.Tensor) and args[0].dim() == 2:
            ids.append(tuple(args[0].shape))

    def leave(module: nn.Module, _args: object, output: object) -> None:
        if not given.get(id(module)):
            return
        when, shape = given[id(module)].pop()
        tensor = maybe_tensor(output)
        calls.setdefault(id(module), []).append(_Called(when, shape, () if tensor is None else tuple(tensor.shape)))

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    with torch.no_grad(), slow_path(handles):
        run()
    return calls, ids[0] if ids else ()


def _stack(
    name: str,
    found: list[Named],
    calls: dict[int, list[_Called]],
    tokens: tuple[int, ...],
    known: Callable[[nn.Module], bool],
) -> Stack | None:
    layers = {
        id(layer): (path, layer)
        for path, layer in found
        if any(True for _ in layer.children()) and any(True for _ in layer.parameters())
        if all(call.keeps or (call.keeps_streams and known(layer)) for call in calls[id(layer)])
    }
    made = [call for key in layers for call in calls[key]]
    if len(made) < 2 or len({call.given for call in made}) > 1:
        return None
    ordered = sorted(layers.values(), key=lambda item: calls[id(item[1])][0].order)
    shape = made[0].given
    turned = len(tokens) == 2 and tokens[0] != tokens[1] and shape[:2] == tokens[::-1]
    return Stack(name, tuple(ordered), len(made), batch_first=not turned)


def _known_inside(
    found: list[Named], calls: dict[int, list[_Called]], known: Callable[[nn.Module], bool]
) -> list[Named]:
    """Layers of a known class, where the modules of a list are groups of them (ALBERT)."""
    if any(known(layer) for _, layer in found):
        return []
    return [
        (f"{path}.{name}", module)
        for path, group in found
        for name, module in group.named_modules()
        if name and known(module) and calls.get(id(module))
    ]


def _repeated(
    model: nn.Module, calls: dict[int, list[_Called]], tokens: tuple[int, ...], known: Callable[[nn.Module], bool]
) -> list[Stack]:
    """Without a list: the outermost modules that return what they are given, of one parent, or one that is called again."""
    parents: dict[str, list[Named]] = {}
    for name, module in model.named_modules():
        here = calls.get(id(module), [])
        outside = not any(_inside(name, taken) for group in parents.values() for taken, _ in group)
        if name and outside and here and all(call.keeps for call in here):
            parents.setdefault(name.rpartition(".")[0], []).append((name, module))
    stacks = [_stack(name, group, calls, tokens, known) for name, group in parents.items()]
    return sorted((stack for stack in stacks if stack is not None), key=lambda stack: -stack.size)[:1]


def _inside(name: str, outer: str) -> bool:
    return name == outer or name.startswith(outer + ".")
