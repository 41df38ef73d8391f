"""One matrix: its size, rank, spectrum, tails and values, comparable over depth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.metrics import effective_rank
from normlab.probes.measure.table import Number, Real, Sparse

_SIDE = 256  # of a large matrix every second, third, ... row and column enters the rank


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
    edge: Number = None  # largest singular value over that of noise of the same size and shape
    tails: Number = (
        None  # fourth moment over the square of the second: 3 for a normal distribution, 1.8 for a uniform one
    )
    distinct: Number = None  # different values in a row over its length, the median row
    values: Number = None  # how many these are
    top: Number = None  # share of the squared entries that one direction makes up
    narrow: bool | None = None  # columns are an eighth of the rows or fewer, as in the second factor of an adapter


def nonfinite_weights(model: nn.Module) -> list[str]:
    """Names of parameters that hold NaN or infinities."""
    return [name for name, parameter in model.named_parameters() if not bool(torch.isfinite(parameter).all())]


def read_bias(layer: int, name: str, bias: Tensor) -> MatrixRow:
    size = bias.detach().float().abs()
    peak = _peak(size)
    zeros = float((size == 0).float().mean())
    return MatrixRow(layer, name, float(size.square().mean().sqrt()), math.nan, peak, 0.0, zeros)


def _peak(sizes: Tensor) -> float:
    """The largest over the median one of those that are not zero: rows of zeros have a rule of their own."""
    some = sizes[sizes > 0]
    return float(some.max() / some.median()) if len(some) else 1.0


def read_matrix(layer: int, name: str, weight: Tensor, expert: int | None = None) -> MatrixRow:
    weight = weight.detach().float()
    rows = torch.linalg.vector_norm(weight, dim=1)
    columns = torch.linalg.vector_norm(weight, dim=0)
    part = weight[:: max(1, weight.shape[0] // _SIDE), :: max(1, weight.shape[1] // _SIDE)][:_SIDE, :_SIDE]
    rms = float(weight.square().mean().sqrt())
    length, edge = float(torch.linalg.matrix_norm(part)), _edge(part)
    noise = float(part.square().mean().sqrt()) * (math.sqrt(part.shape[0]) + math.sqrt(part.shape[1]))
    values = _values(weight)
    return MatrixRow(
        layer=layer,
        name=name,
        rms=rms,
        rank=float(effective_rank(part)) / min(part.shape),
        peak=max(_peak(rows), _peak(columns)),
        quiet=max(quiet(rows), quiet(columns)),
        zeros=float((weight == 0).float().mean()),
        expert=expert,
        edge=edge,
        tails=float(part.double().pow(4).mean() / part.double().square().mean().square().clamp_min(1e-300)),
        distinct=values / min(weight.shape[1], _LONG),
        values=values if min(weight.shape) >= _NARROW else None,
        top=(edge * noise / max(length, 1e-30)) ** 2 if min(weight.shape) >= _FEW else None,
        narrow=True if 8 * weight.shape[1] <= weight.shape[0] else None,
    )


def _edge(part: Tensor) -> float:
    """Of independent entries the largest singular value is about rms (sqrt(rows) + sqrt(columns)) (Marchenko, Pastur)."""
    rms, noise = float(part.square().mean().sqrt()), math.sqrt(part.shape[0]) + math.sqrt(part.shape[1])
    return float(torch.linalg.matrix_norm(part, 2)) / max(rms * noise, 1e-30)


_NARROW = 16  # rows or columns: below, few values are no finding
_FEW = 32  # below, one direction has much by chance: a quarter of a random matrix of 16 x 16
_LONG = 1024  # entries of a row in which different values are counted


def _values(weight: Tensor) -> float:
    """How many different values the median row has."""
    rows = weight[:: max(1, len(weight) // 16)][:16, :_LONG]
    counts = sorted(len(torch.unique(row)) for row in rows)
    return float(counts[len(counts) // 2])


def quiet(sizes: Tensor) -> float:
    return float((sizes <= 0.01 * sizes.mean()).float().mean())
