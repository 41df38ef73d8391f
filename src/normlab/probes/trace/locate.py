"""Find the layers of any model, by the table of rows where it knows them, by their arithmetic where it does not."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from normlab.errors import UnsupportedError
from normlab.probes.trace.altup import AltUpLayout, has_altup
from normlab.probes.trace.hooks import Layout
from normlab.probes.trace.infer import infer_roles, usual_rows
from normlab.probes.trace.roles import LayerRoles, roles_for
from normlab.probes.trace.streams import StreamLayout, row_of
from normlab.probes.trace.structure.stacks import Named, Stack, find_stacks, members
from normlab.probes.trace.verbs import SchemeLayout, speaks_verbs


def locate(model: nn.Module, run: Callable[[], object], *, roles: LayerRoles | None = None) -> Layout:
    """The layout of a model; of one with two stacks that of the last, a decoder. `run` is one small forward pass."""
    return locate_all(model, run, roles=roles)[-1]


def locate_all(model: nn.Module, run: Callable[[], object], *, roles: LayerRoles | None = None) -> list[Layout]:
    """A layout for each stack of layers that `run`, one small forward pass, goes through, in that order."""
    if roles is None and (known := locate_known(model)):
        return known
    stacks = [_given(model, roles)] if roles is not None else find_stacks(model, run, _is_known)
    if not stacks:
        raise UnsupportedError(
            f"{type(model).__name__} has no repeated layers (modules that return a tensor of the shape that they are "
            "given, called one after the other), so there is no residual stream over depth to diagnose"
        )
    layouts: list[Layout] = []
    refused: dict[str, str] = {}
    for stack in stacks:
        found = _layout(model, stack, run, roles)
        if isinstance(found, Layout):
            found.stack = stack.half
            layouts.append(found)
        else:
            refused[stack.name] = found
    if not layouts:
        largest = max(stacks, key=lambda stack: stack.size)
        raise UnsupportedError(_never_whole(model, largest) or refused[largest.name])
    for name, reason in refused.items():
        layouts[-1].notes.append(f"the stack {name!r} was left out: {reason}")
    if len(layouts) == 1:
        layouts[0].stack = ""
    elif len({layout.stack for layout in layouts}) < len(layouts):
        for layout in layouts:  # two encoders, say: only where they are tells them apart
            layout.stack = layout.layers[0][0].rpartition(".")[0]
    return layouts


def _never_whole(model: nn.Module, stack: Stack) -> str:
    """Why parts of a layer were taken for layers: the model calls them itself, and no layer as a whole."""
    around = stack.name.rpartition(".")[0]
    if not around or not isinstance(model.get_submodule(around), nn.ModuleList):
        return ""
    layer, part = model.get_submodule(stack.name), stack.layers[0][0]
    kind = type(layer).__name__
    return (
        f"{kind} (at {stack.name!r}) is never called as a whole: the model calls its parts ({part!r} and others) itself, so "
        f"that nothing shows what enters a layer and what leaves it. Give {kind} a forward that does what is done with its "
        "parts, and call that"
    )


def locate_known(model: nn.Module) -> list[Layout]:
    """What can be told without a forward pass: one stack whose layers the table has; else nothing."""
    if speaks_verbs(model):
        return [SchemeLayout(model)]
    towers: dict[str, list[Named]] = {}
    for name, module in model.named_modules():
        if _is_known(module):
            towers.setdefault(name.rpartition(".")[0], []).append((name, module))
    if len(towers) != 1:
        return []
    name, layers = next(iter(towers.items()))
    if len(layers) < 2 or _something_else(model, name, layers):
        return []

    def never() -> None:
        raise AssertionError("rows that are known need no forward pass")

    first: object = getattr(layers[0][1], "self_attn", None)
    stack = Stack(name, tuple(layers), len(layers), batch_first=bool(getattr(first, "batch_first", True)))
    found = _layout(model, stack, never, None)
    return [found] if isinstance(found, Layout) else []


def _something_else(model: nn.Module, name: str, layers: list[Named]) -> bool:
    """Layers of other classes among these, or another stack: then only a forward pass tells what is what."""
    mine = {id(part) for _, layer in layers for part in layer.modules()}
    for path, container in model.named_modules():
        if isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) and id(container) not in mine:
            inside = [part for _, part in members(path, container)]
            deep = [part for part in inside if id(part) not in mine and any(True for _ in part.children())]
            if deep or (path == name and len(inside) > len(layers)):
                return True
    return False


def _layout(model: nn.Module, stack: Stack, run: Callable[[], object], roles: LayerRoles | None) -> Layout | str:
    """The layout of one stack, or why it has none."""
    layers = list(stack.layers)
    if roles is None and (row := row_of(layers[0][1])) is not None:
        return StreamLayout(model, layers, row)
    if roles is None and has_altup(layers[0][1]):
        return AltUpLayout(model, layers)
    layout = Layout(model, layers, {}, batch_first=stack.batch_first)
    unknown: list[Named] = []
    for name, layer in layers:
        found = roles or roles_for(layer)
        if found is None:
            unknown.append((name, layer))
        else:
            layout.roles[id(layer)] = found
    reason = _infer(layout, unknown, run) if unknown else ""
    return reason or layout


def _infer(layout: Layout, unknown: list[Named], run: Callable[[], object]) -> str:
    """Fill in the rows of layers that the table does not know; why not, where one is no residual stream."""
    found = usual_rows([layer for _, layer in unknown], infer_roles(layout.model, [each for _, each in unknown], run))
    for name, layer in unknown:
        row = found.get(id(layer), "was not seen, because the layer was not called")
        if isinstance(row, str):
            return (
                f"{type(layer).__name__} (at {name!r}) is not in the table of architectures, and what it adds to the "
                f"residual stream is not known: its output {row}. Describe it with nl.diagnose(..., "
                "roles=LayerRoles(...))"
            )
        layout.roles[id(layer)] = row
    kinds = sorted({type(layer).__name__ for _, layer in unknown})
    verb = "is" if len(kinds) == 1 else "are"
    layout.notes.append(
        f"{', '.join(kinds)} {verb} not in the table of architectures: the parts were inferred from the arithmetic"
    )
    scaled = {f"{branch.kind}: {branch.scaled}": None for row in found.values() if not isinstance(row, str)
              for branch in row.branches if branch.scaled}  # fmt: skip
    if scaled:
        layout.notes.append("weighed on the way: " + "; ".join(list(scaled)[:4]) + ("; ..." if len(scaled) > 4 else ""))
    return ""


def _is_known(layer: nn.Module) -> bool:
    return roles_for(layer) is not None or row_of(layer) is not None or has_altup(layer)


def _given(model: nn.Module, roles: LayerRoles) -> Stack:
    found = tuple((name, module) for name, module in model.named_modules() if type(module).__name__ == roles.layer)
    if not found:
        raise UnsupportedError(
            f"the roles that were given are of {roles.layer!r}, and {type(model).__name__} has no module of that class"
        )
    return Stack(found[0][0].rpartition(".")[0], found, len(found))
