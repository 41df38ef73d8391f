"""Find the layers of any model, by the table of rows where it knows them, by their structure where it does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from torch import nn

from normlab.errors import UnsupportedError
from normlab.probes.trace.altup import AltUpLayout, has_altup
from normlab.probes.trace.hooks import Layout
from normlab.probes.trace.infer import infer_roles
from normlab.probes.trace.roles import TABLE, LayerRoles, roles_for
from normlab.probes.trace.streams import StreamLayout, row_of
from normlab.probes.trace.verbs import SchemeLayout, speaks_verbs

_KNOWN = {row.layer for row in TABLE}


def locate(model: nn.Module, run: Callable[[], object], *, roles: LayerRoles | None = None) -> Layout:
    """The layout of a model. `run` is one small forward pass, used only when rows must be inferred."""
    if roles is None and speaks_verbs(model):
        return SchemeLayout(model)
    layers = _known_layers(model, roles) or _repeated_layers(model)
    if roles is None and (row := row_of(layers[0][1])) is not None:
        return StreamLayout(model, layers, row)
    if roles is None and has_altup(layers[0][1]):
        return AltUpLayout(model, layers)
    layout = Layout(model, layers, {})
    if len({type(layer) for _, layer in layers}) == 1 and hasattr(layers[0][1], "self_attn"):
        layout.batch_first = getattr(layers[0][1].self_attn, "batch_first", True)
    unknown: list[tuple[str, nn.Module]] = []
    for name, layer in layers:
        found = roles or roles_for(layer)
        if found is None:
            unknown.append((name, layer))
        else:
            layout.roles[id(layer)] = found
    if unknown:
        _infer(layout, unknown, run)
    return layout


def _infer(layout: Layout, unknown: list[tuple[str, nn.Module]], run: Callable[[], object]) -> None:
    found = {id(layer): infer_roles(layer, run) for _, layer in unknown}
    richest = max((row for row in found.values() if row is not None), key=lambda row: len(row.branches), default=None)
    for name, layer in unknown:
        row = found[id(layer)]
        # A branch that is dead looks absent; the identity check will tell whether the neighbours' row holds here too.
        if row is None or (richest is not None and len(row.branches) < len(richest.branches)):
            row = richest
        if row is None:
            inside = ", ".join(child for child, _ in layer.named_children()) or "no modules"
            raise UnsupportedError(
                f"{type(layer).__name__} (at {name!r}) is not in the table of architectures, and no sum of its parts "
                f"({inside}) gives what it returns, so what is added to the residual stream is not known; describe it "
                "with nl.diagnose(..., roles=LayerRoles(...))"
            )
        layout.roles[id(layer)] = row
    kinds = sorted({type(layer).__name__ for _, layer in unknown})
    layout.notes.append(f"{', '.join(kinds)} is not in the table of architectures: its parts were inferred from data")


def _known_layers(model: nn.Module, roles: LayerRoles | None) -> list[tuple[str, nn.Module]]:
    names = {roles.layer} if roles else _KNOWN
    found = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ in names and (roles is not None or roles_for(module) is not None)
    ]
    return _largest_tower(found)


def _repeated_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The container with most parameters among those that hold at least two modules of one class."""
    groups: list[list[tuple[str, nn.Module]]] = []
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
            kinds = {type(child) for _, child in children}
            if len(children) >= 2 and len(kinds) == 1 and any(True for _ in children[0][1].children()):
                groups.append(children)
    if not groups:
        raise UnsupportedError(
            f"{type(model).__name__} has no repeated layers (no ModuleList or Sequential with two or more modules of "
            "one class), so there is no residual stream over depth to diagnose"
        )
    return max(groups, key=lambda group: sum(_size(child) for _, child in group))


def _largest_tower(found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Layers of one container: a model with two towers (text and image, say) is read by its larger one."""
    towers: dict[str, list[tuple[str, nn.Module]]] = defaultdict(list)
    for name, module in found:
        towers[name.rpartition(".")[0]].append((name, module))
    return max(towers.values(), key=lambda tower: sum(_size(child) for _, child in tower), default=[])


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
