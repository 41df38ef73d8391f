"""The gains of norms: their sizes, and what stands out in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from normlab.probes.measure.table import Number, Real, Sparse
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
    """How much of what a norm divides by is its eps, for the median token; `layer` is -1 outside of the layers.

    `size` is the length of what it returns over that of (x / |x|) gain + bias, `misfit` the distance between the two.
    """

    layer: int
    name: str
    eps: Real
    share: Real
    size: Number = None
    misfit: Number = None
    kind: str | None = None  # its class


@torch.no_grad()
def read_eps(layout: Layout, run: Callable[[], object]) -> tuple[NormRow, ...]:
    """One small pass: the variance of what each norm reads, beside the eps that is added to it, and what it returns."""
    seen: list[tuple[NormRow, list[Beside]]] = []
    handles = []
    for index, name, norm in [*layer_norms(layout), *((-1, name, norm) for name, norm in final_norms(layout))]:
        eps = next((value for key in _EPS if isinstance(value := getattr(norm, key, None), float)), None)
        if eps is None:
            continue

        def look(
            module: nn.Module,
            args: tuple[object, ...],
            kwargs: dict[str, object],
            output: object,
            index: int = index,
            name: str = name,
            eps: float = eps,
        ) -> None:
            if args and isinstance(args[0], Tensor):
                x = args[0].detach().float()
                centred = x - x.mean(-1, keepdim=True) if isinstance(module, nn.LayerNorm) else x
                square = float(centred.square().mean(-1).median())
                gated = any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values()))
                row = NormRow(index, name, eps, eps / max(eps + square, 1e-300), kind=type(module).__name__)
                seen.append((row, [] if gated else _beside(module, x, output, eps)))

        handles.append(norm.register_forward_hook(look, with_kwargs=True))
    with slow_path(handles):
        run()
    return tuple(_defined(seen))


Beside = tuple[float, float]  # (size, misfit) beside one definition of a norm


def _beside(norm: nn.Module, x: Tensor, output: object, eps: float) -> list[Beside]:
    """Beside each definition: with the mean or without it, and the gain stored as it is or less one."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(weight, Tensor) or not isinstance(output, Tensor) or output.shape != x.shape:
        return []
    weight = weight.detach().float()  # a parameter, or a buffer that is not trained
    if x.shape[-1] != len(weight):
        return []
    returned = output.detach().float() - (bias.detach().float() if isinstance(bias, Tensor) else 0.0)
    found = []
    for centred, gain in product((x, x - x.mean(-1, keepdim=True)), (weight, weight + 1)):
        expected = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
        length = expected.norm().clamp_min(1e-30)
        found.append((float(returned.norm() / length), float((returned - expected).norm() / length)))
    return found


def _defined(seen: list[tuple[NormRow, list[Beside]]]) -> Iterator[NormRow]:
    """Each norm beside the definition that most fits a quarter of the norms of its class."""
    best: dict[str | None, int] = {}
    for kind in {row.kind for row, _ in seen}:
        mine = [beside for row, beside in seen if row.kind == kind and beside]
        quarters = [sorted(beside[k][1] for beside in mine)[len(mine) // 4] for k in range(4)] if mine else [0.0]
        best[kind] = quarters.index(min(quarters))
    for row, beside in seen:
        size, misfit = beside[best[row.kind]] if beside else (None, None)
        yield replace(row, size=size, misfit=misfit)


_EPS = ("eps", "variance_epsilon", "epsilon", "norm_eps")
