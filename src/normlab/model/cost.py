"""What a model costs before it exists: parameters, FLOPs, memory, residual-path traffic, pipeline traffic.

Nothing of the model's size is allocated: it is built on the meta device, and its residual path run at a small width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from normlab.errors import ConfigError, unknown
from normlab.model.config import TransformerConfig
from normlab.model.memory import MemoryCost, memory
from normlab.model.stages import make_plan
from normlab.model.transformer import Transformer
from normlab.report.tables import Row
from normlab.results import Plain, as_row
from normlab.schemes import Access, label

DTYPES = {t: getattr(torch, t) for t in ("float64", "float32", "bfloat16", "float16")}


@dataclass(frozen=True)
class PipelineTraffic:
    """Per token and direction, in units of d: forward, and the same again for the gradients.

    The formulas are the paper's, for N_p = N / C blocks a chunk: they leave out the embedding and sums of open blocks,
    and let a rank receive what it made itself. The counted ones are what `Pipeline` sends at these cuts.
    """

    stages: int
    virtual_stages: int
    cuts: tuple[int, ...]
    formula_naive: float | None
    formula_cached: float | None
    naive: float
    cached: float
    hops_naive: tuple[float, ...]
    hops_cached: tuple[float, ...]


@dataclass(frozen=True)
class ParameterCost:
    total: int
    embeddings: int
    branches: int
    scheme: int


@dataclass(frozen=True)
class FlopCost:
    """Of one token; a multiply-add counts two. `mixing` is the scheme's share of the forward pass."""

    forward: float
    training: float
    mixing: float


@dataclass(frozen=True)
class Cost:
    """Bytes are for `batch` x `length` tokens in `dtype`; FLOPs and traffic for one token."""

    scheme: str
    length: int
    batch: int
    dtype: str
    parameters: ParameterCost
    flops: FlopCost
    memory: MemoryCost
    accesses: tuple[Access, ...]
    pipeline: PipelineTraffic | None
    derived: ClassVar[tuple[str, ...]] = ("reads", "writes", "traffic")

    @property
    def reads(self) -> float:
        """Read on the residual path per token and branch, in units of the width."""
        return sum(access.read for access in self.accesses)

    @property
    def writes(self) -> float:
        """Written there, in the same units."""
        return sum(access.write for access in self.accesses)

    @property
    def traffic(self) -> float:
        """Residual-path reads and writes per token and branch, in units of d."""
        return self.reads + self.writes

    def to_dict(self) -> dict[str, Plain]:
        """Plain values, for JSON."""
        return as_row(self)


def cost(
    config: TransformerConfig,
    *,
    length: int | None = None,
    batch: int = 1,
    dtype: str = "float32",
    stages: int = 1,
    virtual_stages: int = 1,
    cuts: Sequence[int] | None = None,
    prefill_chunk: int | None = None,
) -> Cost:
    """The cost of `config`; `length` is the sequence length (default: max_length)."""
    length = config.max_length if length is None else length
    for name, value in (("length", length), ("batch", batch), ("prefill_chunk", prefill_chunk)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, but it is at least 1")
    if dtype not in DTYPES:
        raise ConfigError(unknown("dtype", dtype, DTYPES))
    with torch.device("meta"):
        model = Transformer(config).to(DTYPES[dtype])
    mixing = config.scheme.mixing_flops(model.scheme.frame)
    forward = model.flops_per_token(length) + mixing
    tables = model.num_parameters() - model.num_parameters(embeddings=False)
    scheme = sum(p.numel() for p in model.scheme.parameters())
    branches = sum(p.numel() for p in model.branches.parameters())
    pipeline = None
    if (stages, virtual_stages) != (1, 1) or cuts is not None:
        pipeline = pipeline_traffic(config, stages=stages, virtual_stages=virtual_stages, cuts=cuts)
    return Cost(
        scheme=label(config.scheme),
        length=length,
        batch=batch,
        dtype=dtype,
        parameters=ParameterCost(model.num_parameters(), tables, branches, scheme),
        flops=FlopCost(forward, 3 * forward, mixing),
        memory=memory(model, length=length, batch=batch, prefill_chunk=prefill_chunk),
        accesses=tuple(config.scheme.traffic(model.sites)),
        pipeline=pipeline,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Pipeline
# ---------------------------------------------------------------------------------------------------------------------
def naive_formula(stages: int, virtual_stages: int, blocks_per_chunk: float) -> float:
    """C(C - 1)/2 N_p: hop j carries the j N_p blocks of the chunks before it."""
    chunks = stages * virtual_stages
    return chunks * (chunks - 1) / 2 * blocks_per_chunk


def cached_formula(stages: int, virtual_stages: int, blocks_per_chunk: float) -> float:
    """P(P - 1)/2 N_p + (V - 1) P^2 N_p: the first round as before, then P N_p blocks a hop."""
    first = stages * (stages - 1) / 2 * blocks_per_chunk
    return first + (virtual_stages - 1) * stages**2 * blocks_per_chunk


def pipeline_traffic(
    config: TransformerConfig, *, stages: int, virtual_stages: int = 1, cuts: Sequence[int] | None = None
) -> PipelineTraffic:
    """What crosses between stages, counted on the scheme's own stream, beside the paper's formulas."""
    plans = [
        make_plan(config, ranks=stages, virtual_stages=virtual_stages, cuts=cuts, cached=cached)
        for cached in (False, True)
    ]
    naive, cached = (tuple(elements / config.dim for elements in plan.hops()) for plan in plans)
    blocks = plans[0].sources - 1
    per_chunk = blocks / (stages * virtual_stages)
    return PipelineTraffic(
        stages=stages,
        virtual_stages=virtual_stages,
        cuts=tuple(chunk.start for chunk in plans[0].chunks[1:]),
        formula_naive=naive_formula(stages, virtual_stages, per_chunk) if blocks > 0 else None,
        formula_cached=cached_formula(stages, virtual_stages, per_chunk) if blocks > 0 else None,
        naive=sum(naive),
        cached=sum(cached),
        hops_naive=naive,
        hops_cached=cached,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------------------
def summary_rows(costs: Sequence[Cost]) -> list[Row]:
    """A line a number, a column a model."""
    columns = [(item.scheme, _summary(item)) for item in costs]
    return [{"": key} | {name: cells[key] for name, cells in columns} for key in columns[0][1]]


def access_rows(costs: Sequence[Cost]) -> list[Row]:
    """What each operation of the residual path reads and writes."""
    return [
        {"scheme": item.scheme, "operation": a.operation, "read": f"{a.read:g}d", "write": f"{a.write:g}d"}
        for item in costs
        for a in item.accesses
    ]


def pipeline_rows(costs: Sequence[Cost]) -> list[Row]:
    """Traffic between stages, counted and by the paper's formulas."""

    def formula(value: float | None) -> str:
        return "-" if value is None else f"{value:g}d"

    return [
        {
            "scheme": item.scheme,
            "naive": f"{p.naive:g}d",
            "cached": f"{p.cached:g}d",
            "formula, naive": formula(p.formula_naive),
            "formula, cached": formula(p.formula_cached),
            "widest hop": f"{max(p.hops_naive):g}d -> {max(p.hops_cached):g}d",
        }
        for item in costs
        if (p := item.pipeline) is not None
    ]


def _summary(item: Cost) -> dict[str, str]:
    parameters, memory, flops = item.parameters, item.memory, item.flops
    return {
        "parameters": _short(parameters.total),
        "  of the scheme": _short(parameters.scheme),
        "FLOPs per token, forward": _short(flops.forward),
        "  training": _short(flops.training),
        "  of the scheme, forward": _short(flops.mixing),
        "saved for the backward pass": _size(memory.activations),
        "  of the residual path": _size(memory.residual_path),
        "  with a checkpoint a layer": _size(memory.checkpointed),
        "key-value cache": _size(memory.kv_cache),
        "stream while a prompt is read": _size(memory.prefill_stream),
        "  of its sources": _size(memory.prefill_sources),
        "residual path, per branch": f"{item.traffic:g}d",
        "  read + written": f"{item.reads:g}d + {item.writes:g}d",
    }


def _short(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _size(count: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
