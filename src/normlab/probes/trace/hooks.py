"""Hooks on the original modules: one record per layer call, handed on and dropped, so nothing grows with depth.

A record holds the stream before and after the layer and what each branch really added. The residual identity is
checked on data before anything is reported (`identity.verify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlab.probes.trace.roles import BranchRoles, LayerRoles, Scale, branch_prefixes, module_path, scale_value
from normlab.probes.trace.sdpa import WatchAttention
from normlab.probes.trace.tensors import find_weights, first_tensor, mismatch


@dataclass
class Part:
    """What one branch did to the stream: after = out(before + added)."""

    kind: str
    before: Tensor
    added: Tensor
    after: Tensor


@dataclass(frozen=True)
class BranchGates:
    """The weights of one branch's read and write of n streams, [..., n]; None where they are not scalars."""

    read: Tensor | None
    write: Tensor | None


@dataclass
class Record:
    """One call of one layer. Tensors are [batch, tokens, d]; they are only valid during the call-back."""

    index: int  # counts calls, so a shared block that is applied twelve times makes twelve records
    module: nn.Module
    before: Tensor
    after: Tensor
    parts: list[Part]
    weights: Tensor | None = None  # attention weights [batch, heads, queries, keys], where the model returns them
    attended: Tensor | None = None  # what the attention module returned, before any norm on it
    checks: list[tuple[str, float]] = field(default_factory=list)
    mixed: Tensor | None = None  # what the output projection of attention reads, all heads side by side
    projection: Tensor | None = None  # its matrix, [d, heads x width]
    streams: Tensor | None = None  # [batch, tokens, n, d] when the model keeps several
    mixings: list[Tensor] = field(default_factory=list)  # [..., n, n] of each branch, where streams are mixed
    gates: list[BranchGates] = field(default_factory=list)  # of each branch
    head: Tensor | None = None  # [..., n] of the head's read, with the last layer
    mixer: str | None = None  # what mixes tokens where it is no softmax attention
    unmeasured: str | None = None  # why there are no weights, where they were asked for
    gap: float = 0.0  # how far what was given is from what the layer before returned (`verify`)


LayerTracer = AbstractContextManager[object]


@dataclass
class Layout:
    """Where the layers of a model are, and what their parts do."""

    model: nn.Module
    layers: list[tuple[str, nn.Module]]
    roles: dict[int, LayerRoles]  # by id of the layer module
    batch_first: bool = True
    mutated: set[str] = field(default_factory=set)  # modules whose output is changed in place later on (Falcon)
    notes: list[str] = field(default_factory=list)
    stack: str = ""  # "encoder", "decoder" or where the layers are, in a model that has several stacks
    path: str = ""  # of `model` in a larger one, with a point behind it
    between: str = ""  # what mixes layers outside of them: "U-Net skips"
    stops_at: int = -1  # the last call of a layer in one pass, where that is certain

    @property
    def placement(self) -> str:
        """pre_norm, post_norm, ...; when layers differ, each with its count."""
        found = [self.roles[id(layer)].placement for _, layer in self.layers]
        kinds = list(dict.fromkeys(found))
        inside = kinds[0] if len(kinds) == 1 else " + ".join(f"{found.count(kind)} x {kind}" for kind in kinds)
        return f"{self.between} over {inside}" if self.between else inside

    @property
    def architecture(self) -> str:
        """The class of the layers; of several, each with its count."""
        found = [type(layer).__name__ for _, layer in self.layers]
        return " + ".join(f"{found.count(k)} {k}" if len(set(found)) > 1 else k for k in dict.fromkeys(found))

    @property
    def inferred(self) -> bool:
        return any(row.inferred for row in self.roles.values())

    @property
    def growth_law(self) -> list[object]:
        """What the model itself predicts at random weights, where it says so: see `SchemeLayout`."""
        return []

    @property
    def groups(self) -> list[list[int]] | None:
        """The branches of each layer by their numbers, where the model numbers them."""
        return None

    @property
    def norms(self) -> tuple[str, ...]:
        """Which norms each layer has, where layers of one class differ in them."""
        return ()

    @property
    def owners(self) -> dict[str, tuple[int, str]]:
        """Prefixes of parameters' names: the layer that owns them, and what stands there in place of the prefix."""
        return {prefix: (i, "") for i, (_, layer) in enumerate(self.layers) for prefix in self.prefixes(layer)["layer"]}

    def tracer(self, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False) -> LayerTracer:
        """What watches this layout: hooks on modules here, verbs of a scheme in `SchemeLayout`."""
        return Tracer(self, on_layer, weights=weights, verify=verify)

    def prefixes(self, module: nn.Module) -> dict[str, tuple[str, ...]]:
        """Which parameter names belong to a layer and to each of its branches, as prefixes."""
        path = next(name for name, layer in self.layers if layer is module) + "."
        return {
            "layer": (path,),
            **{
                kind: tuple(path + p for p in sorted(ps))
                for kind, ps in branch_prefixes(self.roles[id(module)]).items()
            },
        }


class _Scratch:
    def __init__(self, before: Tensor) -> None:
        self.before = before
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.versions: dict[str, tuple[Tensor, int]] = {}
        self.weights: Tensor | None = None
        self.attended: Tensor | None = None
        self.mixed: Tensor | None = None
        self.projection: Tensor | None = None

    def called(self, name: str) -> str:
        """The name of a call that begins: `name@2` if it is the second of this module in the layer."""
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.key(name)

    def key(self, name: str) -> str:
        return name if self.counts.get(name, 1) < 2 else f"{name}@{self.counts[name]}"


class Tracer(AbstractContextManager["Tracer"]):
    """Attach hooks for the time of a `with` block; every finished layer call is passed to `on_layer`."""

    def __init__(
        self, layout: Layout, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False
    ) -> None:
        self.layout, self.on_layer, self.weights, self.verify = layout, on_layer, weights, verify
        self.calls = 0
        self._attending = 0
        self._last: tuple[Tensor, Tensor] | None = None  # what the layer before was given and returned
        self._scratch: _Scratch | None = None
        self._handles: list[RemovableHandle] = []
        self._open = ExitStack()
        self._watch = WatchAttention(self._computed_weights) if weights else None

    def __enter__(self) -> Tracer:
        add = self._handles.append
        add(self.layout.model.register_forward_pre_hook(self._reset))
        for layer in {id(layer): layer for _, layer in self.layout.layers}.values():
            row = self.layout.roles[id(layer)]
            add(layer.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True))
            wanted = {module_path(name) for branch in row.branches for name in _recorded(branch, self.verify)}
            for name in sorted(wanted):
                module = layer.get_submodule(name)
                add(module.register_forward_pre_hook(self._reader(name), with_kwargs=True))
                add(module.register_forward_hook(self._writer(name)))
            for branch in row.branches if self.weights else ():
                if branch.kind == "attention":
                    self._watch_heads(layer, branch)
            add(layer.register_forward_hook(self._finisher(row)))
        if self._watch is not None:
            self._open.enter_context(self._watch)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._scratch = self._last = None

    def _reset(self, *_: object) -> None:
        self.calls, self._last = 0, None

    def _watch_heads(self, layer: nn.Module, branch: BranchRoles) -> None:
        core = layer.get_submodule(module_path(branch.core or branch.added))
        if isinstance(core, nn.MultiheadAttention):
            self._handles.append(core.register_forward_pre_hook(_ask_for_weights, with_kwargs=True))
        self._handles.append(core.register_forward_pre_hook(self._attend))
        self._handles.append(core.register_forward_hook(self._keep_weights))
        if (out := output_projection(layer, branch)) is not None:
            self._handles.append(out.register_forward_pre_hook(self._keep_mixed))

    def _attend(self, *_: object) -> None:
        self._attending += 1  # a softmax is this branch's only while its module runs: experts have one too

    def _begin(self, _module: nn.Module, args: object, kwargs: object) -> None:
        self._scratch = _Scratch(first_tensor((args, kwargs)))
        self._note("", self._scratch.before)
        self._scratch.before = self._safe("", self._scratch.before)

    def _reader(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: object, kwargs: object) -> None:
            if self._scratch is not None:
                key = self._scratch.called(name)
                self._scratch.inputs[key] = self._safe(name, first_tensor((args, kwargs)))

        return hook

    def _writer(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: object, output: object) -> None:
            if self._scratch is not None:
                tensor = first_tensor(output)
                self._note(name, tensor)
                self._scratch.outputs[self._scratch.key(name)] = self._safe(name, tensor)

        return hook

    def _note(self, name: str, tensor: Tensor) -> None:
        if self.verify and self._scratch is not None:
            self._scratch.versions[name] = (tensor, tensor._version)

    def _safe(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.clone() if self.verify or name in self.layout.mutated else tensor

    def _keep_weights(self, _module: nn.Module, _args: object, output: object) -> None:
        self._attending -= 1
        if self._scratch is not None:
            returned = find_weights(output)
            self._scratch.weights = self._scratch.weights if returned is None else returned
            self._scratch.attended = first_tensor(output)

    def _keep_mixed(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if self._scratch is not None and args:
            weight = module.weight.detach()  # type: ignore[operator]
            self._scratch.mixed = args[0].detach()
            self._scratch.projection = weight if isinstance(module, nn.Linear) else weight.T

    def _computed_weights(self, weights: Tensor) -> None:
        if self._scratch is not None and self._attending > 0:
            rows = self._scratch.before.shape[0 if self.layout.batch_first else 1]
            if len(weights) == 1 < rows and weights.shape[1] % rows == 0:  # heads lay side by side with the batch
                weights = weights.reshape(rows, -1, *weights.shape[-2:])
            self._scratch.weights = weights

    def _finisher(self, row: LayerRoles) -> Callable[..., None]:
        def hook(module: nn.Module, _args: object, output: object) -> None:
            scratch, self._scratch = self._scratch, None
            if scratch is None:
                return
            record = assemble(row, scratch, first_tensor(output), module, verify=self.verify)
            record.index = self.calls
            record.mixer = next((branch.mixer for branch in row.branches if branch.mixer), None)
            if self.weights and record.weights is None:
                record.unmeasured = _why_unmeasured(row, module)
            if self.verify and self._last is not None:
                before, after = self._last
                record.gap = mismatch(record.before, after, after - before)
            self._last = (record.before, record.after) if self.verify else None
            record.mixed, record.projection = scratch.mixed, scratch.projection
            for name, (tensor, version) in scratch.versions.items():
                if tensor._version != version:
                    self.layout.mutated.add(name)
            self.calls += 1
            if not self.layout.batch_first:
                _transpose(record)
            self.on_layer(record)

        return hook


_OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "out_lin", "wo", "o", "out", "proj")


def output_projection(layer: nn.Module, branch: BranchRoles) -> nn.Module | None:
    """The matrix through which the heads write, by the names that architectures give it; None if there is none."""
    core = module_path(branch.core or branch.added)
    for owner in (core, core.rpartition(".")[0] + ".output", core.rpartition(".")[0]):
        for name in _OUTPUTS:
            path = f"{owner}.{name}".strip(".")
            try:
                found = layer.get_submodule(path)
            except AttributeError:
                continue
            weight = getattr(found, "weight", None)
            if isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point():
                return found
    return None


def _recorded(branch: BranchRoles, verify: bool) -> list[str]:
    names = [branch.added, branch.out, branch.carry]
    return [name for name in ([*names, branch.pre] if verify else names) if name]


def _why_unmeasured(row: LayerRoles, layer: nn.Module) -> str:
    attention = next((branch for branch in row.branches if branch.kind == "attention"), None)
    mixers = [branch.mixer for branch in row.branches if branch.mixer]
    if attention is not None:
        core = type(layer.get_submodule(module_path(attention.core or attention.added))).__name__
        return f"{core} returns no attention weights, and no softmax over keys was seen in it"
    return f"{' and '.join(mixers)} has no attention weights" if mixers else "the layer has no attention"


def weighed(layer: nn.Module, scale: Scale, tensor: Tensor) -> Tensor:
    """scale * tensor; the tensor itself where the scale is 1."""
    if isinstance(scale, float) and scale == 1.0:
        return tensor
    factor = scale_value(layer, scale)
    return tensor * (factor.detach().to(tensor) if isinstance(factor, Tensor) else factor)


def assemble(row: LayerRoles, scratch: _Scratch, after: Tensor, module: nn.Module, *, verify: bool) -> Record:
    """Follow the row's equation through the layer."""
    start = stream = scratch.before
    parts: list[Part] = []
    checks: list[tuple[str, float]] = []
    places = [start]  # the stream behind so many branches
    for branch in row.branches:
        carried = scratch.outputs[branch.carry].reshape(stream.shape) if branch.carry in scratch.outputs else stream
        base = weighed(module, branch.skip, carried)
        if branch.shift is not None:
            base = base + torch.as_tensor(scale_value(module, branch.shift)).to(base)
        written = scratch.outputs.get(branch.added)
        if written is None:  # the layer takes another way: this branch adds nothing to what it returns
            checks.append((f"{branch.added} is called", 1.0))
        added = torch.zeros_like(stream) if written is None else written.reshape(stream.shape)
        added = weighed(module, branch.scale, added)
        # Behind the last branch the layer's own output is the sum: `verify` has shown it, so it is not added up again.
        last = not verify and branch is row.branches[-1] and after.shape == stream.shape
        summed = after if last else base + added
        if verify and branch.pre and branch.pre in scratch.inputs:
            seen = places[branch.behind] if branch.parallel else stream
            error = mismatch(scratch.inputs[branch.pre], seen, seen)  # the stream itself, whatever is carried
            checks.append((f"{branch.pre} reads the stream before the {branch.kind}", error))
        end = scratch.outputs[branch.out].reshape(stream.shape) if branch.out in scratch.outputs else summed
        if verify and branch.out in scratch.inputs:
            error = mismatch(scratch.inputs[branch.out], summed, added)
            checks.append((f"{branch.out} reads stream + {branch.added}", error))
        parts.append(Part(branch.kind, places[branch.behind] if branch.parallel else base, added, end))
        places.append(end)
        stream = end
    if verify:
        change = parts[-1].added if row.branches[-1].out else stream - start
        total = " + ".join(["the stream", *(branch.added for branch in row.branches)])
        checks.append((f"the layer returns {total}", mismatch(after, stream, change)))
    return Record(-1, module, start, after, parts, scratch.weights, scratch.attended, checks)


@contextmanager
def slow_path(hooks: Sequence[RemovableHandle] = ()) -> Iterator[None]:
    """torch.nn.TransformerEncoder has a fused inference path that never calls its submodules; keep it off.

    `hooks` are removed at the end."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
        for hook in hooks:
            hook.remove()


def _ask_for_weights(_module: nn.Module, args: object, kwargs: dict[str, object]) -> tuple[object, dict[str, object]]:
    return args, {**kwargs, "need_weights": True, "average_attn_weights": False}


def _transpose(record: Record) -> None:
    record.before, record.after = record.before.transpose(0, 1), record.after.transpose(0, 1)
    for part in record.parts:
        part.before, part.added, part.after = (t.transpose(0, 1) for t in (part.before, part.added, part.after))
