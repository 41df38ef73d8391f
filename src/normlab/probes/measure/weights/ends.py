"""The two ends: the rows of embedding and head that the text uses, and the tables of positions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlab.probes.measure.metrics import effective_rank
from normlab.probes.measure.table import Number, Real, Sparse
from normlab.probes.measure.weights.matrices import quiet

_SIDE = 256  # of a wide table every second, third, ... column enters the rank


@dataclass(frozen=True)
class EmbeddingReading(Sparse):
    """The rows of the input embedding that the text uses."""

    rows: int
    norm: Real  # median
    peak: Real  # largest over median
    small: Real  # share below a tenth of the median
    rank: Real  # effective rank over the smaller side
    common: Real  # |mean row| over the median norm
    equal: Number = None  # share of rows that another row repeats
    empty: Number = None  # share of coordinates that no row uses
    positions: Number = (
        None  # share of the first rows of a table of positions that are zero, nearly, or equal to another
    )
    rotary: Number = None  # largest relative deviation of a rotary frequency from base^(-2 i / width)


def read_rows(table: Tensor, used: Tensor, model: nn.Module | None) -> EmbeddingReading:
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
        equal=_equal(rows[norms > 0.1 * median]),
        empty=quiet(torch.linalg.vector_norm(rows, dim=0)),
        rotary=None if model is None else _rotary(model),
        positions=None if model is None else _positions(model),
    )


def _equal(rows: Tensor) -> float:
    """Share of the rows that are the same as another one, up to rounding."""
    rows = rows[: 8 * _SIDE]
    if len(rows) < 2:
        return 0.0
    sizes = rows.square().sum(1)
    apart = sizes[:, None] + sizes[None] - 2 * rows @ rows.T  # squared distances
    same = apart < 1e-5 * torch.minimum(sizes[:, None], sizes[None])
    return float((same.sum(1) > 1).float().mean())


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
    places = ((name.lower(), m) for name, m in model.named_modules() if isinstance(m, nn.Embedding))
    named = [m for name, m in places if "pos" in name or name.endswith("wpe")]
    tables = [table.weight.detach()[2:130].float() for table in named]
    return max((_unusable(rows) for rows in tables if len(rows)), default=None)


def _unusable(rows: Tensor) -> float:
    """Share of positions that are not there, or that cannot be told from another."""
    sizes = torch.linalg.vector_norm(rows, dim=1)
    return max(quiet(sizes), _equal(rows[sizes > 0.01 * sizes.mean()]))


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
