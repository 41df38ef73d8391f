"""The residuals that transformers ships, recognised by their parts, with the way their weights go into ours.

Nothing is imported from transformers: a decoder is known by what its layers hold. `Shipped.links` say which of our
parameters is which of theirs, in which layout, so the same list copies weights and compares gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.schemes import Frame, Scheme, SchemeConfig, make_sites, scheme
from normlab.schemes.gated import GatedResidual, IndependentHyperConnections
from normlab.schemes.mhc import ManifoldHyperConnections
from normlab.schemes.skips import Laurel

Layout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Link:
    """ours[index] = layout(theirs) + shift."""

    ours: nn.Parameter
    index: int | None
    theirs: nn.Parameter
    layout: Layout
    shift: float = 0.0

    @torch.no_grad()
    def copy(self) -> None:
        target = self.ours if self.index is None else self.ours[self.index]
        target.copy_(self.layout(self.theirs).to(self.ours) + self.shift)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Ours and theirs, in our layout."""
        assert self.ours.grad is not None
        assert self.theirs.grad is not None
        ours = self.ours.grad if self.index is None else self.ours.grad[self.index]
        return ours, self.layout(self.theirs.grad)


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class LinkNames:
    """A link by the names of its two parameters."""

    ours: str
    theirs: str
    index: int | None = None
    layout: Layout = _same
    shift: float = 0.0


@dataclass(frozen=True)
class Shipped:
    """A decoder of another library: which scheme it is, and where its branches are."""

    decoder: nn.Module
    config: SchemeConfig
    frame: Frame
    branches: tuple[nn.Module, ...]

    def build(self) -> Scheme:
        """Our scheme with their weights."""
        made = self.config.build(self.frame).to(next(self.decoder.parameters()).dtype)
        for link in self.links(made):
            link.copy()
        return made

    def links(self, made: Scheme) -> list[Link]:
        ours, theirs = made.get_parameter, self.decoder.get_parameter
        named = _links(self.config, len(self.branches) // 2)
        return [Link(ours(n.ours), n.index, theirs(n.theirs), n.layout, n.shift) for n in named]


def recognise(module: nn.Module) -> Shipped:
    """Which scheme a decoder of transformers is: DeepSeek-V4, GLM-5-next, HY-V4, Qwen4-Exp, ZAYA or Gemma-3n."""
    decoder = next((m for m in module.modules() if isinstance(getattr(m, "layers", None), nn.ModuleList)), None)
    layers = [] if decoder is None else list(decoder.get_submodule("layers").children())
    if decoder is None or not layers:
        raise InputError(f"{type(module).__name__} has no list of `layers`: it is no decoder that can be recognised")
    config = _config(decoder, layers[0])
    if config is None:
        parts = ", ".join(sorted(name for name, _ in layers[0].named_children()))
        raise InputError(f"the layers of {type(module).__name__} ({parts}) hold no residual that normlab knows")
    branches = tuple(b for layer in layers for b in (_attention(layer), layer.get_submodule("mlp")))
    given: Any = decoder.config
    frame = Frame(given.hidden_size, make_sites(len(layers)), eps=given.rms_norm_eps, init_std=given.initializer_range)
    return Shipped(decoder, config, frame, branches)


def _attention(layer: nn.Module) -> nn.Module:
    return layer.get_submodule("self_attn" if hasattr(layer, "self_attn") else "linear_attn")


def _config(decoder: nn.Module, layer: nn.Module) -> SchemeConfig | None:
    given: Any = getattr(decoder, "config", None)
    if hasattr(layer, "attn_hc"):
        if layer.get_parameter("attn_hc.scale").numel() == 2:
            return scheme("independent_hc", streams=given.hc_mult, magnitude=given.hc_magnitude, eps=given.hc_eps)
        head = "learned" if any(True for _ in decoder.get_submodule("hc_head").parameters()) else "mean"
        options = {"streams": given.hc_mult, "iterations": given.hc_sinkhorn_iters, "eps": given.hc_eps}
        return scheme("mhc", head=head, **options)
    if hasattr(layer, "attn_hyper_connection"):
        return scheme("gated_residual", streams=given.hc_count, rank=given.hc_lowrank)
    if hasattr(layer, "post_attention_residual_scale"):
        return scheme("residual_scaling")
    if hasattr(layer, "laurel"):
        return scheme("laurel", rank=given.laurel_rank)
    return None


def _links(config: SchemeConfig, depth: int) -> Iterator[LinkNames]:
    if isinstance(config, ManifoldHyperConnections):
        yield from _norms(depth)
        yield from _connections(depth, comb_to_res(config.streams), comb_to_res(config.streams))
        yield from _head() if config.closing == "learned" else ()
    elif isinstance(config, IndependentHyperConnections):
        yield from _norms(depth)
        yield from _connections(depth, torch.t, _same)
        yield from _head()
    elif isinstance(config, GatedResidual):
        yield from _gated(depth, config.streams)
    elif isinstance(config, Laurel):
        yield from _laurel(depth)
    else:
        yield from _norms(depth)
        yield from _scaling(depth)


def _norms(depth: int) -> Iterator[LinkNames]:
    for i in range(depth):
        yield LinkNames(f"pre.{2 * i}.weight", f"layers.{i}.input_layernorm.weight")
        yield LinkNames(f"pre.{2 * i + 1}.weight", f"layers.{i}.post_attention_layernorm.weight")
    yield LinkNames("final.weight", "norm.weight")


def comb_to_res(n: int) -> Layout:
    """The rows of `fn` and `base` are pre, post, comb; comb is applied transposed: H_res[k, j] = comb[j, k]."""

    def layout(rows: Tensor) -> Tensor:
        comb = rows[2 * n :].unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)
        found = torch.cat([rows[: 2 * n], comb])
        return found.t() if found.dim() == 2 else found

    return layout


def _connections(depth: int, project: Layout, bias: Layout) -> Iterator[LinkNames]:
    for index, theirs in enumerate(f"layers.{i}.{kind}_hc" for i in range(depth) for kind in ("attn", "ffn")):
        yield LinkNames("project", f"{theirs}.fn", index, project)
        yield LinkNames("bias", f"{theirs}.base", index, bias)
        yield LinkNames("alpha", f"{theirs}.scale", index)


def _head() -> Iterator[LinkNames]:
    yield LinkNames("head.project", "hc_head.hc_fn", layout=torch.t)
    yield LinkNames("head.bias", "hc_head.hc_base")
    yield LinkNames("head.alpha", "hc_head.hc_scale")


def _slice(k: int, n: int) -> Layout:
    return lambda gains: gains.view(n, -1)[k]


def _gated(depth: int, streams: int) -> Iterator[LinkNames]:
    mixers = [f"layers.{i}.{kind}_hyper_connection" for i in range(depth) for kind in ("attn", "mlp")]
    for index, mixer in enumerate([*mixers, "hyper_connection_mixer"]):
        for k in range(streams):
            # Their gain is 1 + w, for all streams side by side.
            yield LinkNames(f"norms.{index}.{k}.weight", f"{mixer}.hc_norm.weight", None, _slice(k, streams), 1.0)
        yield LinkNames("down", f"{mixer}.input_mix_weight_down.weight", index)
        yield LinkNames("up", f"{mixer}.input_mix_weight_up.weight", index)
        if index < len(mixers):
            yield LinkNames("inject", f"{mixer}.block_inject_weight.weight", index)


def _scaling(depth: int) -> Iterator[LinkNames]:
    yield LinkNames("embedding_scale", "input_hidden_states_scale")
    yield LinkNames("embedding_shift", "input_hidden_states_bias")
    for index, theirs in enumerate(
        f"layers.{i}.post_{kind}_residual_scale" for i in range(depth) for kind in ("attention", "mlp")
    ):
        yield LinkNames("a.values", f"{theirs}.residual_scale", index)
        yield LinkNames("skip_shift", f"{theirs}.residual_bias", index)
        yield LinkNames("b.values", f"{theirs}.hidden_states_scale", index)
        yield LinkNames("branch_shift", f"{theirs}.hidden_states_bias", index)


def _laurel(depth: int) -> Iterator[LinkNames]:
    for i in range(depth):
        yield LinkNames(f"pre.{2 * i}.weight", f"layers.{i}.input_layernorm.weight")
        yield LinkNames(f"res.{2 * i}.weight", f"layers.{i}.post_attention_layernorm.weight")
        yield LinkNames(f"pre.{2 * i + 1}.weight", f"layers.{i}.pre_feedforward_layernorm.weight")
        yield LinkNames(f"res.{2 * i + 1}.weight", f"layers.{i}.post_feedforward_layernorm.weight")
        yield LinkNames("left", f"layers.{i}.laurel.linear_left.weight", i)
        yield LinkNames("right", f"layers.{i}.laurel.linear_right.weight", i)
        yield LinkNames(f"low_rank_norm.{i}.weight", f"layers.{i}.laurel.post_laurel_norm.weight")
    yield LinkNames("final.weight", "norm.weight")


@dataclass(frozen=True)
class BranchCall:
    """One branch of their pass: what it was given, and what it gave."""

    module: nn.Module
    args: tuple[object, ...]
    kwargs: dict[str, object]
    output: object

    def like(self, y: Tensor) -> object:
        """What the layer expects, with y in the place of the branch's output."""
        return (y, *self.output[1:]) if isinstance(self.output, tuple) else y


def embedded(decoder: nn.Module, x: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Their decoder on an embedding; Gemma-3n wants token ids too, for its embeddings of each layer."""
    options: dict[str, object] = {"inputs_embeds": x, "use_cache": False}
    by_layer = getattr(decoder, "get_per_layer_inputs", None)
    if tokens is not None and by_layer is not None:
        options |= {"per_layer_inputs": by_layer(tokens)}
    found: Tensor = decoder(**options).last_hidden_state
    return found


def recorded(shipped: Shipped, x: Tensor, tokens: Tensor | None = None) -> tuple[list[BranchCall], Tensor]:
    """Their pass: a call for each branch in order, and the output."""
    calls: dict[nn.Module, BranchCall] = {}

    def after(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        calls[module] = BranchCall(module, args, kwargs, output)

    handles = [branch.register_forward_hook(after, with_kwargs=True) for branch in shipped.branches]
    try:
        output = embedded(shipped.decoder, x, tokens)
    finally:
        for handle in handles:
            handle.remove()
    return [calls[branch] for branch in shipped.branches], output


@contextmanager
def simple_branches(
    shipped: Shipped, x: Tensor, function: Callable[[int, Tensor], Tensor], tokens: Tensor | None = None
) -> Iterator[None]:
    """Their layers, with `function(index, z)` in the place of every attention and MLP: the residual path is left."""
    with torch.no_grad():
        # In float32, for some experts have no float64: only the form of what a branch gives is asked for.
        calls, _ = recorded(recognise(copy.deepcopy(shipped.decoder).float()), x.float(), tokens)
    try:
        for index, (module, call) in enumerate(zip(shipped.branches, calls, strict=True)):

            def instead(*args: Tensor, index: int = index, call: BranchCall = call, **kwargs: Tensor) -> object:
                return call.like(function(index, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]))

            module.forward = instead
        yield
    finally:
        for module in shipped.branches:
            module.__dict__.pop("forward", None)
