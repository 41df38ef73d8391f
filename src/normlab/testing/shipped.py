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
        return list(_LINKS[self.config.name](self.decoder, made))


def recognise(module: nn.Module) -> Shipped:
    """Which scheme a decoder of transformers is: DeepSeek-V4, GLM-5-next, HY-V4, Qwen4-Exp, ZAYA or Gemma-3n."""
    lists = (m for m in module.modules() if isinstance(getattr(m, "layers", None), nn.ModuleList))
    decoder: Any = next(lists, None)
    layers: list[Any] = [] if decoder is None else list(decoder.layers)
    if not layers:
        raise InputError(f"{type(module).__name__} has no list of `layers`: it is no decoder that can be recognised")
    config = _config(decoder, layers[0])
    if config is None:
        parts = ", ".join(sorted(name for name, _ in layers[0].named_children()))
        raise InputError(f"the layers of {type(module).__name__} ({parts}) hold no residual that normlab knows")
    branches = tuple(b for layer in layers for b in (_attention(layer), layer.mlp))
    given = decoder.config
    frame = Frame(given.hidden_size, make_sites(len(layers)), eps=given.rms_norm_eps, init_std=given.initializer_range)
    return Shipped(decoder, config, frame, branches)


def _attention(layer: Any) -> nn.Module:
    found: nn.Module = layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn
    return found


def _config(decoder: Any, layer: Any) -> SchemeConfig | None:
    given: Any = getattr(decoder, "config", None)
    if hasattr(layer, "attn_hc"):
        if layer.attn_hc.scale.numel() == 2:
            return scheme("independent_hc", streams=given.hc_mult, magnitude=given.hc_magnitude, eps=given.hc_eps)
        head = "learned" if any(True for _ in decoder.hc_head.parameters()) else "mean"
        options = {"streams": given.hc_mult, "iterations": given.hc_sinkhorn_iters, "eps": given.hc_eps}
        return scheme("mhc", head=head, **options)
    if hasattr(layer, "attn_hyper_connection"):
        return scheme("gated_residual", streams=given.hc_count, rank=given.hc_lowrank)
    if hasattr(layer, "post_attention_residual_scale"):
        return scheme("residual_scaling")
    if hasattr(layer, "laurel"):
        return scheme("laurel", rank=given.laurel_rank)
    return None


def _same(x: Tensor) -> Tensor:
    return x


def _norms(decoder: Any, made: Any) -> Iterator[Link]:
    for i, layer in enumerate(decoder.layers):
        yield Link(made.pre[2 * i].weight, None, layer.input_layernorm.weight, _same)
        yield Link(made.pre[2 * i + 1].weight, None, layer.post_attention_layernorm.weight, _same)
    yield Link(made.final.weight, None, decoder.norm.weight, _same)


def comb_to_res(n: int) -> Layout:
    """The rows of `fn` and `base` are pre, post, comb; comb is applied transposed: H_res[k, j] = comb[j, k]."""

    def layout(rows: Tensor) -> Tensor:
        comb = rows[2 * n :].unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)
        found = torch.cat([rows[: 2 * n], comb])
        return found.t() if found.dim() == 2 else found

    return layout


def _head(decoder: Any, made: Any) -> Iterator[Link]:
    yield Link(made.head.project, None, decoder.hc_head.hc_fn, torch.t)
    yield Link(made.head.bias, None, decoder.hc_head.hc_base, _same)
    yield Link(made.head.alpha, None, decoder.hc_head.hc_scale, _same)


def _connections(decoder: Any) -> list[Any]:
    return [hc for layer in decoder.layers for hc in (layer.attn_hc, layer.ffn_hc)]


def _mhc(decoder: Any, made: Any) -> Iterator[Link]:
    yield from _norms(decoder, made)
    layout = comb_to_res(made.streams)
    for i, hc in enumerate(_connections(decoder)):
        yield Link(made.project, i, hc.fn, layout)
        yield Link(made.bias, i, hc.base, layout)
        yield Link(made.alpha, i, hc.scale, _same)
    if made.head is not None:
        yield from _head(decoder, made)


def _independent(decoder: Any, made: Any) -> Iterator[Link]:
    yield from _norms(decoder, made)
    for i, hc in enumerate(_connections(decoder)):
        yield Link(made.project, i, hc.fn, torch.t)
        yield Link(made.bias, i, hc.base, _same)
        yield Link(made.alpha, i, hc.scale, _same)
    yield from _head(decoder, made)


def _slice(k: int, n: int) -> Layout:
    return lambda gains: gains.view(n, -1)[k]


def _gated(decoder: Any, made: Any) -> Iterator[Link]:
    mixers = [m for layer in decoder.layers for m in (layer.attn_hyper_connection, layer.mlp_hyper_connection)]
    for i, mixer in enumerate([*mixers, decoder.hyper_connection_mixer]):
        for k, norm in enumerate(made.norms[i]):
            # Their gain is 1 + w, for all streams side by side.
            yield Link(norm.weight, None, mixer.hc_norm.weight, _slice(k, made.config.streams), 1.0)
        yield Link(made.down, i, mixer.input_mix_weight_down.weight, _same)
        yield Link(made.up, i, mixer.input_mix_weight_up.weight, _same)
        if i < len(mixers):
            yield Link(made.inject, i, mixer.block_inject_weight.weight, _same)


def _scaling(decoder: Any, made: Any) -> Iterator[Link]:
    yield from _norms(decoder, made)
    yield Link(made.embedding_scale, None, decoder.input_hidden_states_scale, _same)
    yield Link(made.embedding_shift, None, decoder.input_hidden_states_bias, _same)
    scalings = [s for x in decoder.layers for s in (x.post_attention_residual_scale, x.post_mlp_residual_scale)]
    for i, scaling in enumerate(scalings):
        yield Link(made.a.values, i, scaling.residual_scale, _same)
        yield Link(made.skip_shift, i, scaling.residual_bias, _same)
        yield Link(made.b.values, i, scaling.hidden_states_scale, _same)
        yield Link(made.branch_shift, i, scaling.hidden_states_bias, _same)


def _laurel(decoder: Any, made: Any) -> Iterator[Link]:
    for i, layer in enumerate(decoder.layers):
        yield Link(made.pre[2 * i].weight, None, layer.input_layernorm.weight, _same)
        yield Link(made.res[2 * i].weight, None, layer.post_attention_layernorm.weight, _same)
        yield Link(made.pre[2 * i + 1].weight, None, layer.pre_feedforward_layernorm.weight, _same)
        yield Link(made.res[2 * i + 1].weight, None, layer.post_feedforward_layernorm.weight, _same)
        yield Link(made.left, i, layer.laurel.linear_left.weight, _same)
        yield Link(made.right, i, layer.laurel.linear_right.weight, _same)
        yield Link(made.low_rank_norm[i].weight, None, layer.laurel.post_laurel_norm.weight, _same)
    yield Link(made.final.weight, None, decoder.norm.weight, _same)


_LINKS: dict[str, Callable[[Any, Any], Iterator[Link]]] = {
    "mhc": _mhc,
    "independent_hc": _independent,
    "gated_residual": _gated,
    "residual_scaling": _scaling,
    "laurel": _laurel,
}


@dataclass(frozen=True)
class Call:
    """One branch of their pass: what it was given, and what it gave."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def like(self, y: Tensor) -> Any:
        """What the layer expects, with y in the place of the branch's output."""
        return (y, *self.output[1:]) if isinstance(self.output, tuple) else y


def embedded(decoder: Any, x: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Their decoder on an embedding; Gemma-3n wants token ids too, for its embeddings of each layer."""
    options: dict[str, Any] = {"inputs_embeds": x, "use_cache": False}
    if tokens is not None and hasattr(decoder, "get_per_layer_inputs"):
        options["per_layer_inputs"] = decoder.get_per_layer_inputs(tokens)
    found: Tensor = decoder(**options).last_hidden_state
    return found


def recorded(shipped: Shipped, x: Tensor, tokens: Tensor | None = None) -> tuple[list[Call], Tensor]:
    """Their pass: a call for each branch in order, and the output."""
    calls: dict[nn.Module, Call] = {}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls[module] = Call(module, args, kwargs, output)

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

            def instead(*args: Any, index: int = index, call: Call = call, **kwargs: Any) -> Any:
                return call.like(function(index, kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]))

            module.forward = instead
        yield
    finally:
        for module in shipped.branches:
            module.__dict__.pop("forward", None)
