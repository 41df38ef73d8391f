"""The gains of norms: their sizes, and what stands out in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.table import Real, Sparse
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.schemes import Scheme


@dataclass(frozen=True)
class GainRow(Sparse):
    """The gain of one norm; `layer` is -1 behind the last layer."""

    layer: int
    name: str
    median: Real
    peak: Real  # largest over median magnitude
    spread: Real  # standard deviation over mean magnitude
    flipped: Real  # share of entries whose sign differs from the majority
    small: Real  # share below a fiftieth of the mean magnitude


def norms_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_modules():
        weight = getattr(child, "weight", None)
        if "norm" in type(child).__name__.lower() and isinstance(weight, Tensor) and weight.dim() == 1:
            yield name, child


_PLACES = {"pre": "the norm in front of", "res": "the norm on the output of", "out": "the norm behind"}
_KINDS = {"attention": "attention", "ffn": "the FFN"}


def layer_norms(layout: Layout) -> Iterator[tuple[int, str, nn.Module]]:
    """The norms of each layer. In our own models the scheme owns them: one a branch, in lists."""
    for index, (_, layer) in enumerate(layout.layers):
        yield from ((index, name, norm) for name, norm in norms_of(layer))
    scheme = getattr(layout.model, "scheme", None)
    if not isinstance(scheme, Scheme):
        return
    for name, norm in norms_of(scheme):
        group, _, place = name.rpartition(".")
        if place.isdigit() and int(place) < len(scheme.frame.sites):
            site = scheme.frame.sites[int(place)]
            yield site.layer - 1, f"{_PLACES.get(group, f'scheme.{group} of')} {_KINDS[site.kind]}", norm


def final_norms(layout: Layout) -> list[tuple[str, nn.Module]]:
    """Norms outside of the layers whose place is behind them: by name, as models have no other way to say it."""
    inside = {id(norm) for _, _, norm in layer_norms(layout)}
    outside = [(name, norm) for name, norm in norms_of(layout.model) if id(norm) not in inside]
    return [(name, norm) for name, norm in outside if "embed" not in name.lower()]


def gain_of(norm: nn.Module) -> Tensor:
    """The factor per coordinate; Gemma stores it less one."""
    weight = norm.weight
    assert isinstance(weight, Tensor)
    weight = weight.detach().float()
    return weight + 1 if type(norm).__name__.startswith("Gemma") else weight


def read_gain(layer: int, name: str, norm: nn.Module) -> GainRow:
    gain = gain_of(norm)
    size = gain.abs()
    median = float(size.median())
    sign = 1.0 if float((gain > 0).float().mean()) >= 0.5 else -1.0
    return GainRow(
        layer=layer,
        name=name,
        median=median,
        peak=float(size.max()) / max(median, 1e-30),
        spread=float(size.std(unbiased=False) / size.mean().clamp_min(1e-30)),
        flipped=float((gain * sign < 0).float().mean()),
        small=float((size <= 0.02 * size.mean()).float().mean()),
    )


@dataclass(frozen=True)
class NormRow(Sparse):
    """How much of what a norm divides by is its eps, for the median token; `layer` is -1 outside of the layers."""

    layer: int
    name: str
    eps: Real
    share: Real


@torch.no_grad()
def read_eps(layout: Layout, run: Callable[[], object]) -> tuple[NormRow, ...]:
    """One small pass: the variance of what each norm reads, beside the eps that is added to it."""
    rows: list[NormRow] = []
    handles = []
    for index, name, norm in [*layer_norms(layout), *((-1, name, norm) for name, norm in final_norms(layout))]:
        eps = next((value for key in _EPS if isinstance(value := getattr(norm, key, None), float)), None)
        if eps is None:
            continue

        def look(
            module: nn.Module, args: tuple[object, ...], index: int = index, name: str = name, eps: float = eps
        ) -> None:
            if args and isinstance(args[0], Tensor):
                x = args[0].detach().float()
                centred = x - x.mean(-1, keepdim=True) if isinstance(module, nn.LayerNorm) else x
                size = float(centred.square().mean(-1).median())
                rows.append(NormRow(index, name, eps, eps / max(eps + size, 1e-300)))

        handles.append(norm.register_forward_pre_hook(look))
    with slow_path(handles):
        run()
    return tuple(rows)


_EPS = ("eps", "variance_epsilon", "epsilon", "norm_eps")
