"""Does the model compute what its class computes with the same weights? Where not, each module is asked by itself.

A module of the twin is given the very arguments that the model's module was given, so that what goes wrong in one place
is not seen again behind it. Hooks, patched methods, exchanged modules and damaged buffers show; weights do not.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.inputs.losses import call
from normlab.probes.measure.table import Real, Sparse
from normlab.probes.measure.twin.build import pristine
from normlab.probes.trace.hooks import Layout, slow_path
from normlab.probes.trace.roles import module_path
from normlab.probes.trace.tensors import maybe_tensor, tensors

APART = 1e-3  # of what the twin returns: far beyond rounding, and beyond what another kernel changes
# Rounding moves every product a little and none in a direction: bfloat16 by .003, eight bits a token by .005 to .011.
COARSE, BIASED = 0.02, 0.004
COARSE_SUM = 0.04  # of what is made of several products
_MOST = 1e6


@dataclass(frozen=True)
class Deviation(Sparse):
    """A module that does not compute what its class does with the same weights, on the same input."""

    layer: int  # -1: outside of the layers
    part: str  # attention, ffn, experts, norm, layer, positions, embeddings, final_norm, head, model
    name: str  # its path
    apart: Real  # ||difference|| over ||what its class returns||; 1 where the two cannot be compared


@dataclass(frozen=True)
class Coarse(Sparse):
    """Every matrix product is off by a little, and by no more on one side: coarser numbers, the same function."""

    products: int
    typical: Real  # median of ||difference|| over ||what the class returns||
    worst: Real


@dataclass(frozen=True)
class TwinReading(Sparse):
    """The model beside a fresh instance of its class with the same weights; `apart` is of what they say."""

    apart: Real
    places: tuple[Deviation, ...] = ()
    coarse: Coarse | None = None


@torch.no_grad()
def read_twin(layout: Layout, model: nn.Module, batch: object) -> TwinReading | None:
    """None where there is no twin: see `pristine`. `model` is the whole of which the layout may be one stack."""
    twin = pristine(model)
    if twin is None:
        return None
    try:
        with slow_path():
            one, other = (_said(call(each, batch)) for each in (model, twin))
    except Exception:  # a twin that does not run on this machine says nothing
        return None
    size = apart(one, other)
    if not size > APART:
        return TwinReading(size)
    found = _asked_apart(model, twin, batch)
    products = {name for name, module in model.named_modules() if name in found and _multiplies(module)}
    coarse = _coarse([found[name] for name in products])
    odd = [name for name, answer in found.items() if _is_odd(answer, name in products, coarse)]
    if coarse is not None and not odd and size <= 2 * COARSE_SUM:
        return TwinReading(size, coarse=coarse)
    return TwinReading(size, _places(layout, model, {name: found[name].apart for name in odd}, size))


def _said(output: object) -> Tensor | None:
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else maybe_tensor(output)


def apart(one: Tensor | None, other: Tensor | None) -> float:
    """||one - other|| / ||other||; 1 where they cannot be compared."""
    if one is None or other is None:
        return 0.0 if one is other else 1.0
    if one.shape != other.shape:
        return 1.0
    one, other = one.detach().double(), other.detach().double()
    both = one.isfinite() & other.isfinite()  # masks hold minus infinities
    one, other = one[both], other[both]
    return min(float((one - other).norm() / other.norm().clamp_min(1e-30)), _MOST)


def bias(one: Tensor | None, other: Tensor | None) -> float:
    """The factor of `other` that is in `one`, minus one; 0 where there is nothing to compare."""
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    one, other = one.detach().double(), other.detach().double()
    both = one.isfinite() & other.isfinite()
    one, other = one[both], other[both]
    return float((one * other).sum() / other.square().sum().clamp_min(1e-30)) - 1 if other.any() else 0.0


_ANOTHER_STACK = re.compile(r"\.\d+(\.|$)")


@dataclass(frozen=True)
class _Answer:
    """How far a module is from its twin on the same input, and which part of that is a factor."""

    apart: float
    bias: float


def _asked_apart(model: nn.Module, twin: nn.Module, batch: object) -> dict[str, _Answer]:
    """Every module beside its twin, in the order of their first call."""
    found: dict[str, _Answer] = {}
    handles = []
    theirs = dict(twin.named_modules())
    for name, module in model.named_modules():
        other = theirs.get(name)
        if name and other is not None and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            keep, compare = _asked(name, other, found)
            handles.append(module.register_forward_pre_hook(keep, with_kwargs=True, prepend=True))
            handles.append(module.register_forward_hook(compare, with_kwargs=True))
    with slow_path(handles):
        call(model, batch)
    return found


def _coarse(products: Sequence[_Answer]) -> Coarse | None:
    """None unless most products are off, and half of them by as little as rounding is."""
    moved = [answer.apart for answer in products if answer.apart > APART]
    if len(moved) < max(4, 0.75 * len(products)) or statistics.median(moved) > COARSE:
        return None
    return Coarse(len(moved), statistics.median(moved), max(moved))


def _is_odd(answer: _Answer, product: bool, coarse: Coarse | None) -> bool:
    """Does it deviate, or by more than rounding where all products are rounded?"""
    if coarse is None:
        return answer.apart > APART
    return answer.apart > (COARSE if product else COARSE_SUM) or abs(answer.bias) > BIASED


def _places(layout: Layout, model: nn.Module, odd: Mapping[str, float], whole: float) -> tuple[Deviation, ...]:
    """The innermost modules that deviate."""
    inner = [name for name in odd if not any(other.startswith(name + ".") for other in odd)]
    roots = {id(layer): index for index, (_, layer) in enumerate(layout.layers)}
    places = {name: roots[id(module)] for name, module in model.named_modules() if id(module) in roots}
    if not inner:  # what stands around all modules
        return (Deviation(-1, "model", type(model).__name__, whole),)
    rows = [_named(name, odd[name], places, layout) for name in inner]
    return tuple(row for row in rows if row.layer >= 0 or not _ANOTHER_STACK.search(row.name))


def _multiplies(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)


def _asked(name: str, twin: nn.Module, found: dict[str, _Answer]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Hooks that keep what the module is given, before anybody else changes it, and ask the twin the same."""
    given: list[tuple[object, object]] = []
    wide = next((parameter.dtype for parameter in twin.parameters()), None)

    def keep(_module: nn.Module, args: object, kwargs: object) -> None:
        given.append((_copied(args, wide), _copied(kwargs, wide)))

    def compare(_module: nn.Module, _args: object, _kwargs: object, output: object) -> None:
        args, kwargs = given.pop() if given else ((), {})
        try:
            with _as_stored():
                said = twin(*args, **kwargs)  # type: ignore[misc, arg-type]
        except Exception:  # asked in a way that its class does not know
            found[name] = _Answer(1.0, 1.0)
            return
        ours, others = (list(filter(Tensor.is_floating_point, tensors(each))) for each in (output, said))
        answers = [_Answer(apart(one, other), bias(one, other)) for one, other in zip(ours, others, strict=False)]
        found[name] = max([found.get(name, _Answer(0.0, 0.0)), *answers], key=lambda answer: answer.apart)

    return keep, compare


@contextmanager
def _as_stored() -> Iterator[None]:
    """Without the lower precision that an `autocast` around the whole model asks for."""
    kinds = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.is_autocast_enabled(kind)]
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)


def _copied(value: object, wide: torch.dtype | None) -> object:
    """Tensors copied, so that what is changed in place later is kept as it was; in the twin's precision where cast is on."""
    if isinstance(value, Tensor):
        kept = value.detach().clone()
        cast = wide is not None and kept.is_floating_point() and torch.is_autocast_enabled(kept.device.type)
        return kept.to(wide) if cast else kept
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: _copied(item, wide) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(_copied(item, wide) for item in value)
    return [_copied(item, wide) for item in value] if type(value) is list else value


def _named(name: str, size: float, places: dict[str, int], layout: Layout) -> Deviation:
    home = next((path for path in places if name == path or name.startswith(path + ".")), None)
    if home is None:
        return Deviation(-1, _outside(name), name, size)
    index = places[home]
    inside = name.removeprefix(home).removeprefix(".")
    return Deviation(index, _inside(inside, layout, index) if inside else "layer", name, size)


def _inside(name: str, layout: Layout, index: int) -> str:
    low = name.lower()
    roles = layout.roles.get(id(layout.layers[index][1]))
    for branch in roles.branches if roles else ():
        core = module_path(branch.core or branch.added)
        if core and (name == core or name.startswith(core + ".")):
            return "experts" if branch.kind == "ffn" and _routed(low) else branch.kind
    if "norm" in low.rpartition(".")[2]:
        return "norm"
    return "attention" if "att" in low else "experts" if _routed(low) else "ffn"


def _routed(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "expert" in name or "router" in name or last == "gate"


def _outside(name: str) -> str:
    low = name.lower()
    if "rotary" in low or "pos" in low.rpartition(".")[2]:
        return "positions"
    if "norm" in low:
        return "final_norm"
    if "embed" in low or "wte" in low or "wpe" in low:
        return "embeddings"
    return "head" if any(word in low for word in ("head", "cls", "predictions", "score")) else "model"
