"""What the weights alone tell: copies, sizes, ranks, heads and gains of every layer, comparable over depth."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.metrics import effective_rank
from normlab.probes.measure.table import Number, Real, Sparse
from normlab.probes.trace.hooks import Layout

ALIKE = 0.99  # cosine between the weights of two layers
_SIDE = 256  # of a large matrix every second, third, ... row and column enters the rank


@dataclass(frozen=True)
class Twin:
    """Two layers whose weights are the same, or nearly."""

    layer: int
    next: int
    cosine: float


@dataclass(frozen=True)
class MatrixRow(Sparse):
    """One matrix of one layer; `expert` counts the slices of a fused parameter."""

    layer: int
    name: str
    rms: Real
    rank: Real  # effective rank over the smaller side, of the sampled part
    peak: Real  # largest row or column norm over the median one
    quiet: Real  # share of rows, or of columns, below a hundredth of the mean one
    zeros: Real  # share of entries that are exactly zero
    expert: int | None = None


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


@dataclass(frozen=True)
class EmbeddingReading(Sparse):
    """The rows of the input embedding that the text uses."""

    rows: int
    norm: Real  # median
    peak: Real  # largest over median
    small: Real  # share below a tenth of the median
    rank: Real  # effective rank over the smaller side
    common: Real  # |mean row| over the median norm
    positions: Number = None  # share of the first rows of a table of positions that are zero, or nearly
    rotary: Number = None  # largest relative deviation of a rotary frequency from base^(-2 i / width)


@dataclass(frozen=True)
class Anatomy:
    """Everything that was read from the weights."""

    matrices: tuple[MatrixRow, ...] = ()
    gains: tuple[GainRow, ...] = ()
    embedding: EmbeddingReading | None = None
    head: EmbeddingReading | None = None


def nonfinite_weights(model: nn.Module) -> list[str]:
    """Names of parameters that hold NaN or infinities."""
    return [name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all())]


@torch.no_grad()
def duplicates(layout: Layout) -> list[Twin]:
    """Layers whose matrices point the same way, neighbours or not.

    One module that is applied often (ALBERT) is a design, not a copy, and is not listed.
    """
    vectors = [_sample(layer) for _, layer in layout.layers]
    found = []
    for i, a in enumerate(vectors):
        for j in range(i + 1, len(vectors)):
            b = vectors[j]
            if a.numel() and a.shape == b.shape and (cosine := _cosine(a, b)) > ALIKE:
                found.append(Twin(i, j, cosine))
    return found


def _sample(layer: nn.Module) -> Tensor:
    """Some entries of every matrix, each matrix at unit size: a large one does not outvote the others."""
    parts = []
    for parameter in layer.parameters():
        if parameter.dim() >= 2 and parameter.is_floating_point():
            flat = parameter.detach().flatten()
            flat = flat[:: max(1, flat.numel() // 16384) | 1].double()
            parts.append(flat / flat.norm().clamp_min(1e-300))
    return torch.cat(parts) if parts else torch.zeros(0)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))


@torch.no_grad()
def read_weights(layout: Layout, used: Tensor | None = None) -> Anatomy:
    """Matrices and gains of every layer, the norm behind the last one, and the embedding rows that are `used`."""
    matrices: list[MatrixRow] = []
    gains: list[GainRow] = []
    for index, (_, layer) in enumerate(layout.layers):
        for name, parameter in layer.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() == 2:
                matrices.append(_matrix(index, name, parameter))
            elif parameter.dim() == 1 and name.endswith("bias"):
                matrices.append(_bias(index, name, parameter))
            elif parameter.dim() == 3:
                matrices += [_matrix(index, name, part, expert) for expert, part in enumerate(parameter)]
        gains += [_gain(index, name, module) for name, module in _norms(layer)]
    gains += [_gain(-1, name, module) for name, module in _final_norms(layout)]
    table, head = input_embedding(layout.model), output_embedding(layout.model)
    first = None if table is None or used is None else _embedding(table.weight, used, layout.model)
    last = None if head is None or used is None else _embedding(head, used, None)
    return Anatomy(tuple(matrices), tuple(gains), first, last)


def _bias(layer: int, name: str, bias: Tensor) -> MatrixRow:
    size = bias.detach().float().abs()
    peak = float(size.max() / size.median().clamp_min(1e-30)) if float(size.max()) > 0 else 1.0
    zeros = float((size == 0).float().mean())
    return MatrixRow(layer, name, float(size.square().mean().sqrt()), math.nan, peak, 0.0, zeros)


def _matrix(layer: int, name: str, weight: Tensor, expert: int | None = None) -> MatrixRow:
    weight = weight.detach().float()
    rows = torch.linalg.vector_norm(weight, dim=1)
    columns = torch.linalg.vector_norm(weight, dim=0)
    usual = float(rows.median().clamp_min(1e-30))
    part = weight[:: max(1, weight.shape[0] // _SIDE), :: max(1, weight.shape[1] // _SIDE)][:_SIDE, :_SIDE]
    return MatrixRow(
        layer=layer,
        name=name,
        rms=float(weight.square().mean().sqrt()),
        rank=float(effective_rank(part)) / min(part.shape),
        peak=max(float(rows.max()) / usual, float(columns.max() / columns.median().clamp_min(1e-30))),
        quiet=max(_quiet(rows), _quiet(columns)),
        zeros=float((weight == 0).float().mean()),
        expert=expert,
    )


def _quiet(sizes: Tensor) -> float:
    return float((sizes <= 0.01 * sizes.mean()).float().mean())


def _norms(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_modules():
        weight = getattr(child, "weight", None)
        if "norm" in type(child).__name__.lower() and isinstance(weight, Tensor) and weight.dim() == 1:
            yield name, child


def _final_norms(layout: Layout) -> list[tuple[str, nn.Module]]:
    """Norms outside of the layers whose place is behind them: by name, as models have no other way to say it."""
    inside = {id(module) for _, layer in layout.layers for module in layer.modules()}
    outside = [(name, norm) for name, norm in _norms(layout.model) if id(norm) not in inside]
    return [(name, norm) for name, norm in outside if "embed" not in name.lower()]


def gain_of(norm: nn.Module) -> Tensor:
    """The factor per coordinate; Gemma stores it less one."""
    weight = norm.weight
    assert isinstance(weight, Tensor)
    weight = weight.detach().float()
    return weight + 1 if type(norm).__name__.startswith("Gemma") else weight


def _gain(layer: int, name: str, norm: nn.Module) -> GainRow:
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


def _embedding(table: Tensor, used: Tensor, model: nn.Module | None) -> EmbeddingReading:
    rows = table.detach()[used.to(table.device)].float()
    norms = torch.linalg.vector_norm(rows, dim=1)
    median = float(norms.median().clamp_min(1e-30))
    part = rows[: 4 * _SIDE, :: max(1, rows.shape[1] // _SIDE)]
    return EmbeddingReading(
        rows=len(rows),
        norm=median,
        peak=float(norms.max()) / median,
        small=float((norms < 0.1 * median).float().mean()),
        rank=float(effective_rank(part)) / min(part.shape),
        common=float(rows.mean(0).norm()) / median,
        rotary=None if model is None else _rotary(model),
        positions=None if model is None else _positions(model),
    )


def input_embedding(model: nn.Module) -> nn.Embedding | None:
    """The table of tokens: what the model names so, or its largest embedding."""
    find = getattr(model, "get_input_embeddings", None)
    found = find() if callable(find) else None
    if isinstance(found, nn.Embedding):
        return found
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return max(tables, key=lambda table: table.num_embeddings, default=None)


def output_embedding(model: nn.Module) -> Tensor | None:
    """The matrix of the head where it is not the embedding's own."""
    find = getattr(model, "get_output_embeddings", None)
    weight = getattr(find() if callable(find) else None, "weight", None)
    table = input_embedding(model)
    if (
        not isinstance(weight, Tensor)
        or not weight.is_floating_point()
        or (table is not None and weight is table.weight)
    ):
        return None
    return weight


def _positions(model: nn.Module) -> float | None:
    named = [m for name, m in model.named_modules() if isinstance(m, nn.Embedding) and "pos" in name.lower()]
    tables = [torch.linalg.vector_norm(table.weight.detach()[2:130].float(), dim=1) for table in named]
    return max((_quiet(sizes) for sizes in tables if len(sizes)), default=None)


def _rotary(model: nn.Module) -> float | None:
    """Plain rotary frequencies fall geometrically from 1; scaled ones (YaRN, linear, ...) are not judged."""
    config = getattr(model, "config", None)
    kinds = re.findall(r"'rope_type': '(\w+)'", str(getattr(config, "rope_parameters", None)))
    if not kinds or set(kinds) != {"default"}:
        return None
    bases = [
        float(base) for base in re.findall(r"'rope_theta': ([\d.]+)", str(getattr(config, "rope_parameters", None)))
    ]
    worst = None
    for name, table in model.named_buffers():
        if not name.endswith("inv_freq") or "original" in name or table.numel() < 3:
            continue
        logs = table.detach().double().clamp_min(1e-300).log()
        steps = torch.arange(len(logs), dtype=torch.double, device=logs.device) / len(logs)
        errors = [float((logs + steps * math.log(base)).abs().max()) for base in bases]
        worst = max(worst or 0.0, min(errors, default=0.0))
    return worst
