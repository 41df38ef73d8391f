"""A scheme built for the norms that a model has, and put into it.

Three ways, by what the scheme says of norms:

    keep    a scheme that mixes or weighs, and equals Pre-Norm when neutral: the model's own norms stay where they are, in
            front of a branch, behind it or behind the addition; what a branch adds is what the model adds
    place   a row that says where norms stand: the model's norm where both have one, a new one where the model has none,
            and where the row has none, the model's norm with a fixed size in place of its statistics
    own     other schemes with norms of their own: theirs in place of the model's

The scheme never owns a norm of the model, so that no name of the checkpoint changes. A norm is scale invariant up to its
eps; where a scheme reads a mean of n sources, the read is multiplied by n, which is exact at any eps.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from normlab.errors import UnsupportedError
from normlab.schemes import Demands, Frame, Scheme, SchemeConfig
from normlab.schemes.depth_attention import DepthAttentionConfig
from normlab.schemes.norms import Scale
from normlab.schemes.placement import Placement, PlacementConfig
from normlab.surgery.anatomy import Anatomy, SitePlace
from normlab.surgery.hooks import HOOKS, Checkpointed, Closes, Enters, Fetches, Joins, Reads, Returns, Scales, Shows
from normlab.surgery.stream import StreamPlan

Way = Literal["keep", "place", "own"]


class Fixed(nn.Module):
    """g x / size + b: a norm of the model without its statistics, where a scheme has no norm. `size` is measured."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        found = next(norm.parameters(), None)
        dtype, device = (None, None) if found is None else (found.dtype, found.device)
        self.size: Tensor
        self.register_buffer("size", torch.ones((), dtype=dtype, device=device))

    def forward(self, x: Tensor) -> Tensor:
        gain, shift = affine(self.norm)
        y = x / self.size
        if gain is not None:
            y = y * gain.to(x.dtype)
        return y if shift is None else y + shift.to(x.dtype)


def affine(norm: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """The gain and the shift that a norm applies; Gemma stores its gain less one."""
    weight: Tensor | None = getattr(norm, "weight", None)
    shift: Tensor | None = getattr(norm, "bias", None)
    if weight is None:
        return None, shift
    return (1 + weight if stores_gain_less_one(norm) else weight), shift


def stores_gain_less_one(norm: nn.Module) -> bool:
    return type(norm).__name__.startswith("Gemma") or getattr(norm, "zero_centered", False)


def way_of(config: SchemeConfig) -> Way:
    if isinstance(config, PlacementConfig):
        row = config.row
        around = row.pre is True and row.res is False and row.out is False and not row.embedding
        return "keep" if around and config.card.parent is not None else "place"
    return "keep" if config.card.parent is not None else "own"


def check(config: SchemeConfig, body: Anatomy) -> None:
    """Raise for what cannot be put into this model."""
    if config.demands() != Demands():
        raise UnsupportedError(
            f"{config.name} reaches inside the branches (norms on queries, keys and values, or in front of the output "
            "projection), which a swap leaves alone; train it from scratch with nl.Transformer"
        )
    if config.name == "ngpt":
        raise UnsupportedError(
            "ngpt keeps every weight matrix on the sphere; train it from scratch with nl.Transformer"
        )
    if isinstance(config, DepthAttentionConfig) and config.inner != "pre_norm":
        raise UnsupportedError(
            f"inner={config.inner}: in a swapped model the norms around a branch are the model's own; leave inner out"
        )
    if isinstance(config, PlacementConfig) and callable(config.row.c) and not all(place.pre for place in body.places):
        raise UnsupportedError(
            f"{config.name} scales what the norm in front of a branch returns, and this model ({body.placement}) has no "
            "norm there"
        )
    config.check(body.sites)


def build(config: SchemeConfig, body: Anatomy) -> Scheme:
    """The scheme as it comes; `splice` fits it to the model."""
    scheme = config.build(Frame(body.dim, body.sites, norm=body.norm, eps=body.eps))
    if next(body.layers[0].parameters()).dtype == torch.float64:
        scheme.double().fill()  # its start in full precision: -ln(n - 1) in float32 is not the same number
    return scheme


def splice(body: Anatomy, scheme: Scheme, *, way: Way) -> None:
    """Put the scheme into the model."""
    joins = tuple(_fit(scheme, place, way) for place in body.places)
    if way != "own":
        _fit_end(scheme, body, way)
    like = next(body.layers[0].parameters())
    if like.device.type != "meta":
        scheme.to(device=like.device, dtype=like.dtype)
    boxes = tuple(part for part in scheme.modules() if isinstance(part, (nn.ParameterDict, nn.ParameterList)))
    if boxes and not scheme._forward_pre_hooks:
        scheme.register_forward_pre_hook(Fetches(boxes))
        scheme.register_forward_hook(Returns(boxes))
    owner = body.owner
    owner.scheme, owner.splice = scheme, StreamPlan(body.sites, joins)
    for number, layer in enumerate(body.layers):
        first = next(place.site.index for place in body.places if place.module is layer)
        layer.register_forward_pre_hook(Enters(number, first, owner), with_kwargs=True, prepend=True)
    body.layers[-1].register_forward_hook(Closes())
    owner.register_forward_hook(Shows())
    for place, join in zip(body.places, joins, strict=True):
        _hook(scheme, place, join)
    for module in body.model.modules():
        function = vars(module).get("_gradient_checkpointing_func")
        if function is not None and not isinstance(function, Checkpointed):
            module._gradient_checkpointing_func = Checkpointed(function)  # type: ignore[assignment]


def _fit(scheme: Scheme, place: SitePlace, way: Way) -> str:
    """Lend the model's norms to one site of the scheme; how its branch joins."""
    i = place.site.index
    wants_pre, wants_res = (not isinstance(norms[i], nn.Identity) for norms in (scheme.pre, scheme.res))
    wants_out = isinstance(scheme, Placement) and not isinstance(scheme.out[i], nn.Identity)
    if (place.pre and (wants_pre or way == "keep")) or (way == "keep"):
        scheme.pre[i] = Scale(1 / (scheme.input_scales()[i] * factor_of(scheme, i)))
    if way == "keep":
        return "adds" if place.out else ""
    if place.pre and not wants_pre:
        _fix(place, place.pre)
    if place.res and wants_res:
        scheme.res[i] = nn.Identity()
    elif place.res:
        _fix(place, place.res)
    if place.out and wants_out:
        assert isinstance(scheme, Placement)
        scheme.out[i] = nn.Identity()
        return "norms"
    if place.out:
        _fix(place, (place.out,))
        return "adds"
    return ""


def _fit_end(scheme: Scheme, body: Anatomy, way: Way) -> None:
    """The model's own final norm stays, or its absence; what it reads is as large as the plain stream."""
    closes_at = getattr(scheme, "closes_at", scheme.input_scales()[-1])
    has_final = not body.places[-1].out
    if way == "keep" or has_final:
        scheme.final = Scale(1 / closes_at)


def factor_of(scheme: Scheme, index: int) -> float:
    """The fixed number c behind the norm of this site."""
    if not isinstance(scheme, Placement) or scheme.c.identity:
        return 1.0
    return scheme.c.numbers[index]


def _fix(place: SitePlace, names: tuple[str, ...]) -> None:
    for name in names:
        parent, _, leaf = name.rpartition(".")
        norm = place.part(name)
        if not isinstance(norm, Fixed):
            setattr(place.module.get_submodule(parent), leaf, Fixed(norm))


def _hook(scheme: Scheme, place: SitePlace, join: str) -> None:
    factor = factor_of(scheme, place.site.index)
    for name in place.pre or place.cores:
        module = place.part(name)
        module.register_forward_pre_hook(Reads(), with_kwargs=True)
        if place.pre and factor != 1.0:
            module.register_forward_hook(Scales(factor))
    if join:
        norm = place.part(place.out)
        norm.forward = Joins(norm)


def unsplice(body: Anatomy) -> None:
    """Take everything out that `splice` put in. Norms whose gains were changed stay as they are."""
    for module in body.model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, HOOKS)]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
        if isinstance(vars(module).get("forward"), Joins):
            del module.forward
        function = vars(module).get("_gradient_checkpointing_func")
        if isinstance(function, Checkpointed):
            module._gradient_checkpointing_func = function.function  # type: ignore[assignment]
        for name, child in list(module.named_children()):
            if isinstance(child, Fixed):
                setattr(module, name, child.norm)
    if "scheme" in body.owner._modules:
        del body.owner.scheme
        del body.owner.splice
