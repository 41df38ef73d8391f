"""Layers, matrices, experts and heads that are copies of each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from normlab.probes.trace.hooks import Layout

ALIKE = 0.99  # cosine between the weights of two layers, or of two experts
_ROWS = 512  # whose lengths are compared
_MOST = 64  # experts: pairs grow with the square


@dataclass(frozen=True)
class Twin:
    """Two layers whose weights are the same, or nearly."""

    layer: int
    next: int
    cosine: float


@dataclass(frozen=True)
class MatrixTwin:
    """One matrix that two layers hold, each its own copy."""

    name: str
    layer: int
    next: int
    cosine: float


@dataclass(frozen=True)
class ExpertTwin:
    """Two experts of one layer whose matrices are the same, or nearly."""

    layer: int
    first: int
    second: int
    cosine: float


@torch.no_grad()
def expert_twins(layout: Layout) -> tuple[ExpertTwin, ...]:
    """Pairs of experts that say the same: of fused parameters their slices, of a list of modules its members."""
    return tuple(
        ExpertTwin(index, i, j, cosine)
        for index, (_, layer) in enumerate(layout.layers)
        for (i, a), (j, b) in combinations(enumerate(_experts(layer)), 2)
        if a.shape == b.shape and (cosine := _cosine(a, b)) > ALIKE
    )


def _experts(layer: nn.Module) -> list[Tensor]:
    """One vector per expert: some entries of all of its matrices."""
    found = [p.detach() for p in layer.parameters() if p.dim() == 3 and p.is_floating_point()]
    fused = [p for p in found if 1 < len(p) <= _MOST and min(p.shape[1:]) > 4]  # no kernels of convolutions
    if fused and len({len(p) for p in fused}) == 1:
        parts = [[_unit(part) for part in parameter] for parameter in fused]
        return [torch.cat(each) for each in zip(*parts, strict=True)]
    for name, child in layer.named_modules():
        if isinstance(child, nn.ModuleList) and "expert" in name and 1 < len(child) <= _MOST:
            return [_sample(expert) for expert in child]
    return []


@torch.no_grad()
def matrix_twins(layout: Layout) -> tuple[MatrixTwin, ...]:
    """Matrices of one name that are the same in two layers. A tensor that layers share by design is none.

    Tables of positions, and parameters whose entries are mostly of one sign (the decays of a state space), start alike in
    every layer.
    """
    known: dict[str, list[tuple[int, Tensor]]] = {}
    for index, (_, layer) in enumerate(layout.layers):
        tables = {id(module.weight) for module in layer.modules() if isinstance(module, nn.Embedding)}
        for name, parameter in layer.named_parameters():
            if (
                id(parameter) not in tables
                and parameter.dim() >= 2
                and parameter.is_floating_point()
                and min(parameter.shape[-2:]) > 4
            ):
                known.setdefault(name, []).append((index, parameter.detach()))
    found = []
    for name, matrices in known.items():
        units = [(index, matrix.data_ptr(), _unit(matrix)) for index, matrix in matrices]
        for (i, mine, a), (j, theirs, b) in combinations(units, 2):
            plain = abs(float(a.mean())) < 0.3 * float(a.square().mean().sqrt())
            if mine != theirs and plain and a.shape == b.shape and (cosine := float(a @ b)) > ALIKE:
                found.append(MatrixTwin(name, i, j, cosine))
    return tuple(found)


@torch.no_grad()
def scale_twins(layout: Layout) -> tuple[MatrixTwin, ...]:
    """Matrices of one name that differ and whose rows have the same lengths: scales of another layer.

    Rows that are all of one length are a design, and say nothing.
    """
    known: dict[str, list[tuple[int, Tensor, Tensor]]] = {}
    for index, (_, layer) in enumerate(layout.layers):
        for name, parameter in layer.named_parameters():
            if parameter.dim() >= 2 and parameter.is_floating_point() and parameter.shape[-1] > 4:
                rows = torch.linalg.vector_norm(parameter.detach().float(), dim=-1).flatten()[:_ROWS]
                if len(rows) >= 16 and float(rows.std()) > 0.01 * float(rows.mean()) > 0:
                    known.setdefault(name, []).append((index, rows, parameter.detach()))
    found = []
    for name, matrices in known.items():
        for (i, mine, a), (j, theirs, b) in combinations(matrices, 2):
            alike = mine.shape == theirs.shape and bool(torch.allclose(mine, theirs, rtol=1e-4, atol=0))
            if alike and a.data_ptr() != b.data_ptr() and (cosine := float(_unit(a) @ _unit(b))) < ALIKE:
                found.append(MatrixTwin(name, i, j, cosine))
    return tuple(found)


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
    parts = [_unit(p.detach()) for p in layer.parameters() if p.dim() >= 2 and p.is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0)


def _unit(values: Tensor) -> Tensor:
    flat = values.flatten()
    flat = flat[:: max(1, flat.numel() // 16384) | 1].double()
    unit: Tensor = flat / flat.norm().clamp_min(1e-300)
    return unit


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))
