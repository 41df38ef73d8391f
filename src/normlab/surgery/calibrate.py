"""Sizes measured on text, for what a swap cannot keep exactly: a new norm has the gain of what it replaces.

A norm drops the size of each token, so Pre-Norm cannot become Peri-, Post- or Res-Norm exactly; with the median size of
each place as its gain, the typical token is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normlab.errors import UnsupportedError
from normlab.probes.inputs.losses import call
from normlab.probes.trace.tensors import first_tensor
from normlab.schemes import Scheme
from normlab.schemes.placement import Placement
from normlab.surgery.anatomy import Anatomy, SitePlace
from normlab.surgery.splice import Fixed, factor_of, stores_gain_less_one


@dataclass(frozen=True)
class Sizes:
    """Median over tokens of the root mean square, per site: of what is read, of what is added, and of their sum."""

    read: tuple[float, ...]
    added: tuple[float, ...]
    after: tuple[float, ...]
    norms: dict[str, float]  # of what each norm of the model reads, by its name in the layer and the site


def measure(body: Anatomy, batches: Sequence[object]) -> Sizes:
    """Watch the model, as it is, on these batches."""
    found: dict[tuple[str, int | str], list[float]] = defaultdict(list)
    held: dict[int, Tensor] = {}
    handles: list[RemovableHandle] = []

    def keep(what: str, key: int | str, x: Tensor) -> None:
        found[what, key].append(float(x.detach().float().square().mean(-1).sqrt().median()))

    def before(place: SitePlace, name: str) -> Callable[..., None]:
        index = place.site.index

        def hook(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            x = first_tensor((args, kwargs))
            keep("norm", f"{index}.{name}", x)
            if name in (place.pre or place.cores):
                held[index] = x.detach()
                keep("read", index, x)

        return hook

    def behind(place: SitePlace, last: bool) -> Callable[..., None]:
        index, sums = place.site.index, added

        def hook(_: nn.Module, args: tuple[object, ...], output: object) -> None:
            y = first_tensor(output).detach()
            sums[index] = sums[index] + y.reshape(sums[index].shape) if index in sums else y
            if last:
                whole = sums.pop(index)
                keep("added", index, whole)
                keep("after", index, held[index] + whole.reshape(held[index].shape))

        return hook

    added: dict[int, Tensor] = {}
    for place in body.places:
        watched = {*place.pre, *place.res, *([place.out] if place.out else []), *(() if place.pre else place.cores)}
        handles += [place.part(n).register_forward_pre_hook(before(place, n), with_kwargs=True) for n in watched]
        for at, branch in enumerate(place.branches):
            hook = behind(place, at == len(place.branches) - 1)
            handles.append(place.part(branch.added).register_forward_hook(hook))
    try:
        with torch.no_grad():
            for batch in batches:
                call(body.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    mean = {key: sum(values) / len(values) for key, values in found.items()}
    read, sums, after = (tuple(mean[what, p.site.index] for p in body.places) for what in ("read", "added", "after"))
    return Sizes(read, sums, after, {str(name): value for (what, name), value in mean.items() if what == "norm"})


@torch.no_grad()
def set_sizes(body: Anatomy, scheme: Scheme, sizes: Sizes) -> None:
    """The measured sizes into the scheme's new norms, and into the model's norms that are fixed."""
    for place in body.places:
        i = place.site.index
        _gain(scheme.pre[i], sizes.read[i])
        _gain(scheme.res[i], sizes.added[i])
        if isinstance(scheme, Placement):
            _gain(scheme.out[i], sizes.after[i])
        for name in (*place.pre, *place.res, *([place.out] if place.out else [])):
            norm = place.part(name)
            if isinstance(norm, Fixed):
                norm.size.fill_(sizes.norms[f"{i}.{name}"])
    _gain(getattr(scheme, "embedding", None), sizes.read[0])


def _gain(norm: nn.Module | None, size: float) -> None:
    weight = getattr(norm, "weight", None)
    if isinstance(weight, Tensor):
        weight.fill_(size)


@torch.no_grad()
def fold_factors(body: Anatomy, scheme: Scheme) -> list[tuple[Tensor, Tensor]]:
    """c N(x) with the gain of N divided by c: what LayerNorm Scaling starts from. Returns what undoes it."""
    before: list[tuple[Tensor, Tensor]] = []
    for place in body.places:
        factor = factor_of(scheme, place.site.index)
        for name in place.pre if factor != 1.0 else ():
            before += scale_norm(place.part(name), 1 / factor)
    return before


@torch.no_grad()
def scale_norm(norm: nn.Module, factor: float) -> list[tuple[Tensor, Tensor]]:
    """Multiply what a norm returns by a number, in its gain and shift."""
    weight, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if weight is None:
        raise UnsupportedError(f"{type(norm).__name__} has no gain that a number could be folded into")
    before = [(weight, weight.clone())]
    if stores_gain_less_one(norm):
        weight.add_(1).mul_(factor).sub_(1)
    else:
        weight.mul_(factor)
    if isinstance(shift, Tensor):
        before.append((shift, shift.clone()))
        shift.mul_(factor)
    return before
