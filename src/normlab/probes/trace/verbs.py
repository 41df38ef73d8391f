"""Models whose residual path is an object with verbs (normlab's own, or any that offers the same ones).

There the addition happens inside `scheme.write`, so hooks on modules cannot see it. What is needed is duck-typed:

    model.scheme    with  enter(h, site), leave(y, site), write(stream, y, carry, site), close(stream)
    model.branches  one module per site;  model.sites  with .index, .layer (from 1), .kind

h at `enter` is the stream that a branch reads (before its norm), and what `leave` returns is what it contributes. For
schemes that add to one stream, h moves by exactly that; for the others h is a mix of sources, and "before" and
"after" are what this layer and the next one read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlab.probes.inputs.losses import Loss
from normlab.probes.trace.hooks import BranchGates, Layout, Part, Record, slow_path
from normlab.probes.trace.roles import BranchRoles, LayerRoles
from normlab.probes.trace.sdpa import WatchAttention
from normlab.probes.trace.tensors import mismatch

Verb = Callable[..., Tensor]
ENOUGH = 16  # tokens: to fewer of them a factor and a shift fit by chance
_VERBS = ("enter", "leave", "write", "close", "_read")


def speaks_verbs(model: nn.Module) -> bool:
    scheme = getattr(model, "scheme", None)
    return isinstance(scheme, nn.Module) and hasattr(model, "branches") and all(hasattr(scheme, v) for v in _VERBS)


class SchemeLayout(Layout):
    """Layers are the sites that share a number; the placement is the scheme's own name."""

    def __init__(self, model: nn.Module) -> None:
        self.sites = list(model.sites)  # type: ignore[arg-type]
        self.scheme: Any = model.scheme
        by_layer: dict[int, list[int]] = defaultdict(list)
        for site in self.sites:
            by_layer[site.layer].append(site.index)
        self._groups = [by_layer[layer] for layer in sorted(by_layer)]
        branches: Any = model.branches
        layers: list[tuple[str, nn.Module]] = [
            (f"layer {i}", nn.ModuleList(branches[s] for s in group)) for i, group in enumerate(self._groups)
        ]
        row = LayerRoles(
            type(self.scheme).__name__, tuple(BranchRoles(s.kind, "") for s in self.sites[: len(self._groups[0])])
        )
        super().__init__(model, layers, {id(layer): row for _, layer in layers})

    @property
    def placement(self) -> str:
        return str(getattr(getattr(self.scheme, "config", None), "name", type(self.scheme).__name__))

    @property
    def architecture(self) -> str:
        return type(self.model).__name__ + " layer"

    @property
    def groups(self) -> list[list[int]]:
        return self._groups

    @property
    def norms(self) -> tuple[str, ...]:
        """Which norms stand around the branches of each layer, if layers differ: Mix-LN's first are unlike its last."""
        found = (getattr(self.scheme, name, None) for name in ("pre", "res", "out"))
        lists = [part for part in found if isinstance(part, nn.ModuleList)]
        kinds = tuple(
            " ".join(type(part[s]).__name__ for part in lists for s in group if s < len(part)) for group in self.groups
        )
        return kinds if len(set(kinds)) > 1 else ()

    @property
    def owners(self) -> dict[str, tuple[int, str]]:
        numbered = ((i, place, site) for i, group in enumerate(self.groups) for place, site in enumerate(group))
        return {f"branches.{site}.": (i, f"{place}.") for i, place, site in numbered}

    def tracer(
        self, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False
    ) -> SchemeTracer:
        return SchemeTracer(self, on_layer, weights=weights, verify=verify)

    @property
    def growth_law(self) -> list[Any]:
        """What the scheme itself predicts at random weights: mean square of the stream after each layer."""
        config: Any = getattr(self.scheme, "config", None)
        frame = getattr(self.scheme, "frame", None)
        law = config.growth(frame) if hasattr(config, "growth") and frame is not None else []
        if len(law) <= self.groups[-1][-1] + 1:
            return []
        found = [law[group[-1] + 1] for group in self.groups]
        if isinstance(found[-1], (int, float)):
            found[-1] /= getattr(self.scheme, "closes_at", 1.0) ** 2  # see SchemeTracer._end
        return found

    def prefixes(self, module: nn.Module) -> dict[str, tuple[str, ...]]:
        group = next(self.groups[i] for i, (_, layer) in enumerate(self.layers) if layer is module)
        found: dict[str, tuple[str, ...]] = {"layer": tuple(f"branches.{s}." for s in group)}
        for s in group:
            found[self.sites[s].kind] = (f"branches.{s}.",)
        return found


class SchemeTracer(AbstractContextManager["SchemeTracer"]):
    """The same contract as `Tracer`, by wrapping the verbs on the instance for the time of a `with` block."""

    def __init__(
        self,
        layout: SchemeLayout,
        on_layer: Callable[[Record], None],
        *,
        weights: bool = False,
        verify: bool = False,
        skipped: range = range(0),
    ) -> None:
        self.layout, self.on_layer, self.weights, self.verify, self.skipped = layout, on_layer, weights, verify, skipped
        self._watch = WatchAttention(self._keep_weights) if weights else None
        self._handles: list[RemovableHandle] = []
        self._open = ExitStack()
        self._reset()

    def _reset(self, *_: object) -> None:
        self._begin_layer(0)
        self._summed: Tensor | None = None
        self._added: Tensor | None = None
        self._head: Tensor | None = None

    def _begin_layer(self, layer: int) -> None:
        self._layer = layer
        self._reads: list[Tensor] = []
        self._parts: list[Part] = []
        self._attention: Tensor | None = None
        self._attended: Tensor | None = None
        self._streams: Tensor | None = None
        self._mixings: list[Tensor] = []
        self._gates: list[BranchGates] = []
        self._checks: list[tuple[str, float]] = []

    def __enter__(self) -> SchemeTracer:
        scheme, model = self.layout.scheme, self.layout.model
        self._handles.append(model.register_forward_pre_hook(self._reset))
        verbs = {"enter": self._enter, "leave": self._leave, "write": self._write, "_read": self._end}
        for name, wrapper in verbs.items():
            setattr(scheme, name, _wrapped(getattr(scheme, name), wrapper))
        if isinstance(head := getattr(scheme, "head", None), nn.Module):
            self._handles.append(head.register_forward_hook(self._keep_head))
        for module in getattr(scheme, "out", []):
            if isinstance(module, nn.Module):
                self._handles.append(module.register_forward_pre_hook(self._before_out))
        if self._watch is not None:
            self._open.enter_context(self._watch)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        for name in ("enter", "leave", "write", "_read"):
            self.layout.scheme.__dict__.pop(name, None)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._reset()

    # -- the verbs ---------------------------------------------------------------------------------------------------
    def _enter(self, verb: Verb, h: Tensor, site: Any) -> Tensor:
        self._arrive(h)
        return verb(h, site)

    def _leave(self, verb: Verb, y: Tensor, site: Any) -> Tensor:
        self._added = verb(y, site)
        return self._added

    def _write(self, verb: Any, stream: Any, y: Tensor, carry: Any, site: Any) -> Any:
        self._added = self._summed = None
        if site.layer - 1 in self.skipped:
            # One tensor passes by. A stream of numbered sources needs its entry, which is then zero.
            result = stream if isinstance(stream, Tensor) else verb(stream, torch.zeros_like(y), carry, site)
        else:
            result = verb(stream, y, carry, site)
        if site.kind == "attention":
            self._attended = y
        if isinstance(stream, Tensor) and stream.dim() == 4:
            self._streams = result
            mixing = getattr(carry, "res", None)  # H <- res H + post (x) y
            if isinstance(mixing, Tensor):
                self._mixings.append(mixing)
            if (find := getattr(self.layout.scheme, "coefficients", None)) is not None:
                read, write, _ = find(stream, site)
                self._gates.append(BranchGates(*(gate.expand(stream.shape[:-1]) for gate in (read, write))))
        before, single = self._reads[-1], isinstance(stream, Tensor) and stream.dim() == 3
        adds = self._added is not None  # a scheme that does not `leave` moves the stream in another way (nGPT)
        added = self._added if self._added is not None else (result - stream if single else y)
        if isinstance(carry, Tensor) and carry.shape == before.shape:
            before = carry  # the skip path takes the normed stream (HybridNorm)
        self._parts.append(Part(site.kind, before, added, before))
        if self.verify and single and adds:
            total = self._summed if self._summed is not None else result
            what = f"scheme.write adds what leave returns to the stream of branch {site.index}"
            self._checks.append((what, _scaled(total, added, before)))
        return result

    def _end(self, verb: Verb, h: Tensor) -> Tensor:
        # A head that reads the sum of n streams reads n times what a branch does; a mean or a learned read does not.
        self._arrive(h if self._streams is None else h / self.layout.scheme.closes_at)
        return verb(h)

    def _keep_head(self, _module: nn.Module, _args: object, weights: Tensor) -> None:
        self._head = weights

    def _before_out(self, _module: nn.Module, args: Any) -> None:
        self._summed = args[0]

    def _keep_weights(self, weights: Tensor) -> None:
        self._attention = weights

    def _arrive(self, h: Tensor) -> None:
        """h is known: the branch before is finished, and so may be its layer."""
        if self._parts:
            self._parts[-1].after = h
        if not self._parts or len(self._parts) < len(self.layout.groups[self._layer]):
            self._reads.append(h)
            return
        index, parts = self._layer, self._parts
        record = Record(
            index, self.layout.layers[index][1], self._reads[0], h, parts, self._attention, self._attended, self._checks
        )
        record.streams, record.mixings, record.gates = self._streams, self._mixings, self._gates
        record.head, self._head = self._head, None
        self._begin_layer(index + 1)
        self._reads.append(h)
        self.on_layer(record)


def _wrapped(verb: Any, wrapper: Any) -> Any:
    return lambda *args, **kwargs: wrapper(verb, *args, **kwargs)


def _scaled(total: Tensor, added: Tensor, before: Tensor) -> float:
    """How far total - added is from a multiple of the stream: schemes of one stream may weigh the skip (DeepNorm),
    each coordinate by itself (Admin), and shift it (residual scaling)."""
    rest, base = ((total - added).detach().double(), before.detach().double())
    factor = (rest * base).sum() / base.square().sum().clamp_min(1e-30)
    apart = mismatch(rest, factor * base, added)
    if base[..., 0].numel() < ENOUGH:
        return apart
    rest, base = (x.flatten(0, -2) - x.flatten(0, -2).mean(0) for x in (rest, base))
    factor = (rest * base).sum(0) / base.square().sum(0).clamp_min(1e-30)
    return min(apart, mismatch(rest, factor * base, added.flatten(0, -2)))


class SchemeSkipper:
    """Skips by dropping the writes of a layer (or, for a stream of numbered sources, by writing zero)."""

    def __init__(self, layout: SchemeLayout, batch: Any, loss: Loss) -> None:
        self.layout, self.batch, self.loss = layout, batch, loss
        self.depth = len(layout.layers)
        self.updates: dict[int, Tensor] = {}

    @torch.no_grad()
    def _run(self, skipped: range, keep: Callable[[int, Tensor], None]) -> float:
        def on_layer(record: Record) -> None:
            keep(record.index, record.after[:, -1] - record.before[:, -1])

        with SchemeTracer(self.layout, on_layer, skipped=skipped), slow_path():
            return float(self.loss(self.layout.model, self.batch))

    def baseline(self) -> float:
        return self._run(range(0), self.updates.__setitem__)

    def without(self, skipped: range, _stream: Tensor | None) -> tuple[float, list[float | None]]:
        later: list[float | None] = [None] * self.depth

        def keep(index: int, update: Tensor) -> None:
            if index >= skipped.stop:
                known = self.updates[index]
                later[index] = float((update - known).norm() / known.norm().clamp_min(1e-30))

        return self._run(skipped, keep), later
