"""Hugging Face decoders that keep n residual streams: DeepSeek-V4, GLM-5-next, HY-V4 and Qwen4-Exp, by their parts.

Each branch of such a layer has a connection, a module that reads the streams X and gives the branch's input z, the write
gates `post` and, where streams are mixed, `comb`. The layer then computes

    X <- comb^T X + post (x) F(z)

which is checked on data for every branch before anything is reported. Streams lie as [batch, tokens, n, d], or side by
side as [batch, tokens, n d]. As for normlab's own schemes, "before" and "after" are what this layer and the next read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlab.probes.trace.hooks import BranchGates, Layout, Part, Record
from normlab.probes.trace.roles import BranchRoles, LayerRoles
from normlab.probes.trace.tensors import find_weights, first_tensor, mismatch, tensors


@dataclass(frozen=True)
class Connections:
    """One kind of layer: its two connections by name, and how their streams lie."""

    connections: tuple[str, str]
    head: str
    side_by_side: bool = False


TABLE = (
    Connections(("attn_hc", "ffn_hc"), "hc_head"),
    Connections(("attn_hyper_connection", "mlp_hyper_connection"), "hyper_connection_mixer", side_by_side=True),
)


class Connected(NamedTuple):
    """What a connection gave."""

    streams: Tensor  # [batch, tokens, n, d]
    z: Tensor
    post: Tensor  # [batch, tokens, n]
    comb: Tensor | None  # [batch, tokens, n, n], from, to
    pre: Tensor | None


def row_of(layer: nn.Module) -> Connections | None:
    names = {name for name, _ in layer.named_children()}
    return next((row for row in TABLE if set(row.connections) <= names), None)


class StreamLayout(Layout):
    """The layers, with the scheme that their connections are."""

    def __init__(self, model: nn.Module, layers: list[tuple[str, nn.Module]], row: Connections) -> None:
        self.row = row
        super().__init__(model, layers, {id(layer): _roles(layer) for _, layer in layers})
        owner: Any = model.get_submodule(layers[0][0].rpartition(".")[0].rpartition(".")[0])
        self.head: Any = getattr(owner, row.head, None)

    @property
    def placement(self) -> str:
        if self.row.side_by_side:
            return "gated_residual"
        first: Any = self.layers[0][1].get_submodule(self.row.connections[0])
        return "mhc" if first.scale.numel() == 3 else "independent_hc"

    def tracer(
        self, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False
    ) -> StreamTracer:
        return StreamTracer(self, on_layer, weights=weights, verify=verify)


def _roles(layer: nn.Module) -> LayerRoles:
    attention = "self_attn" if hasattr(layer, "self_attn") else "linear_attn"
    return LayerRoles(type(layer).__name__, (BranchRoles("attention", attention), BranchRoles("ffn", "mlp")))


class StreamTracer(AbstractContextManager["StreamTracer"]):
    """The same contract as `Tracer`: a record for each layer call, given when it is known what is read next."""

    def __init__(
        self, layout: StreamLayout, on_layer: Callable[[Record], None], *, weights: bool = False, verify: bool = False
    ) -> None:
        self.layout, self.on_layer, self.weights, self.verify = layout, on_layer, weights, verify
        self._handles: list[RemovableHandle] = []
        self._reset()

    def _reset(self, *_: object) -> None:
        self._calls = 0
        self._pending: Record | None = None
        self._at: Connected | None = None
        self._expected: Tensor | None = None
        self._begin()

    def _begin(self) -> None:
        self._reads: list[Tensor] = []
        self._parts: list[Part] = []
        self._gates: list[BranchGates] = []
        self._mixings: list[Tensor] = []
        self._checks: list[tuple[str, float]] = []
        self._attention: Tensor | None = None
        self._why = "the attention was not called"
        self._attended: Tensor | None = None

    def __enter__(self) -> StreamTracer:
        add = self._handles.append
        add(self.layout.model.register_forward_pre_hook(self._reset))
        for _, layer in self.layout.layers:
            for name, branch in zip(self.layout.row.connections, self.layout.roles[id(layer)].branches, strict=True):
                add(layer.get_submodule(name).register_forward_hook(self._connected))
                add(layer.get_submodule(branch.added).register_forward_hook(self._branched(branch.kind)))
            add(layer.register_forward_hook(self._finished))
        if self.layout.head is not None:
            add(self.layout.head.register_forward_hook(self._headed))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._reset()

    # -- the hooks -------------------------------------------------------------------------------------------------------
    def _connected(self, module: Any, args: Any, output: Any) -> None:
        at = connected(module, args[0], output, side_by_side=self.layout.row.side_by_side)
        self._check(at.streams)
        self._arrive(at.z)
        self._at = at
        self._gates.append(BranchGates(at.pre, at.post))
        if at.comb is not None:
            self._mixings.append(at.comb.transpose(-1, -2))

    def _branched(self, kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, _args: object, output: Any) -> None:
            if self._at is None:
                return
            y = first_tensor(output)
            if kind == "attention":
                self._attended = y
                self._attention = find_weights(output) if self.weights else None
                self._why = why_none(module, output)
            self._parts.append(Part(kind, self._at.z, y, self._at.z))
            if self.verify:
                self._expected = written(self._at, y)

        return hook

    def _finished(self, module: nn.Module, _args: object, output: Any) -> None:
        if self._at is None or not self._parts:
            return
        streams = as_streams(first_tensor(output), self._at.streams.shape[-2])
        self._check(streams)
        record = Record(self._calls, module, self._reads[0], self._reads[0], self._parts)
        record.weights, record.attended, record.checks = self._attention, self._attended, self._checks
        if self.weights and record.weights is None:
            record.unmeasured = self._why
        record.streams, record.mixings, record.gates = streams, self._mixings, self._gates
        self._pending, self._at = record, None
        self._calls += 1
        self._begin()
        if self._calls == len(self.layout.layers) and self.layout.head is None:
            self._arrive(streams.mean(-2))

    def _headed(self, module: Any, args: Any, output: Tensor) -> None:
        if self._pending is not None:
            streams = as_streams(args[0], self._pending.streams.shape[-2])  # type: ignore[union-attr]
            self._pending.head = head_weights(module, streams)
        self._arrive(output)

    def _arrive(self, h: Tensor) -> None:
        """h is read: the branch before it is known in full, and so is the layer before."""
        if self._parts:
            self._parts[-1].after = h
        self._reads.append(h)
        if self._pending is not None:
            record, self._pending = self._pending, None
            record.after = record.parts[-1].after = h
            self.on_layer(record)

    def _check(self, found: Tensor) -> None:
        expected, self._expected = self._expected, None
        if expected is None or self._at is None:
            return
        kind, error = self._parts[-1].kind, mismatch(found, expected, expected - self._at.streams)
        what = f"the streams after the {kind} are comb^T X + post F"
        if error > 1e-3 and self._at.comb is not None:
            turned = written(self._at._replace(comb=self._at.comb.transpose(-1, -2)), self._parts[-1].added)
            if mismatch(found, turned, expected - self._at.streams) < 1e-3:
                what += " (they are with comb not transposed)"
        self._checks.append((what, error))


def connected(module: Any, x: Tensor, output: Any, *, side_by_side: bool) -> Connected:
    """What a connection read and gave, whichever order it returns it in."""
    if side_by_side:
        z, _, post = output
        return Connected(as_streams(x, module.hc_count), z, post, None, None)
    post, *comb, z = output
    return Connected(x, z, post, comb[0] if comb else None, read_gates(module.fn, module.base, module.scale, x))


def read_gates(fn: Tensor, base: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """The read's weights, which the connection uses and does not return."""
    n, flat = x.shape[-2], x.flatten(-2).float()
    normed = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    return torch.sigmoid(normed @ fn[:n].float().t() * scale[0].float() + base[:n].float())


def why_none(attention: nn.Module, output: object) -> str:
    """Why there are no attention weights to measure in what a module returned."""
    square = [each for each in tensors(output) if each.dim() == 4 and each.is_floating_point()]
    said = (
        "weights that do not sum to 1 over the keys (a learned sink takes the rest)"
        if square
        else "no attention weights"
    )
    return f"{type(attention).__name__} returns {said}"


def head_weights(head: Any, streams: Tensor) -> Tensor | None:
    """The weights of the head's read, [..., n]; equal ones where it has no parameters, None where they are vectors."""
    if hasattr(head, "hc_fn"):
        return read_gates(head.hc_fn, head.hc_base, head.hc_scale, streams)
    if any(True for _ in head.parameters()):
        return None
    return torch.full(streams.shape[:-1], 1 / streams.shape[-2], device=streams.device)


def as_streams(x: Tensor, n: int) -> Tensor:
    return x if x.dim() == 4 else x.unflatten(-1, (n, -1))


def written(at: Connected, y: Tensor) -> Tensor:
    """comb^T X + post (x) y"""
    kept = at.streams if at.comb is None else at.comb.to(at.streams.dtype).transpose(-1, -2) @ at.streams
    return kept + at.post.to(y.dtype).unsqueeze(-1) * y.unsqueeze(-2)
