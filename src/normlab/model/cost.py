"""What a model costs before it exists: parameters, FLOPs, memory, residual-path traffic, pipeline traffic.

Nothing of the model's size is allocated: it is built on the meta device, and its residual path run at a small width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.errors import ConfigError, unknown
from normlab.model.config import TransformerConfig
from normlab.model.stages import make_plan, probe, probe_widths, walk
from normlab.model.transformer import Transformer
from normlab.schemes import Access, Scheme
from normlab.schemes.base import Stream, tensors_of
from normlab.schemes.norms import make_norm, unit

DTYPES = {t: getattr(torch, t) for t in ("float64", "float32", "bfloat16", "float16")}
STATISTICS = 4  # norm and softmax statistics are kept in float32


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
class Cost:
    """Bytes are for `batch` x `length` tokens in `dtype`; FLOPs and traffic for one token."""

    scheme: str
    length: int
    batch: int
    dtype: str
    parameters: dict[str, int]  # total, embeddings, branches, scheme
    flops: dict[str, float]  # forward and training (a multiply-add counts two), and the scheme's share of the forward
    memory: dict[str, int]  # saved for the backward pass; with a checkpoint a layer; for inference
    accesses: tuple[Access, ...]
    pipeline: PipelineTraffic | None

    @property
    def reads(self) -> float:
        return sum(access.read for access in self.accesses)

    @property
    def writes(self) -> float:
        return sum(access.write for access in self.accesses)

    @property
    def traffic(self) -> float:
        """Residual-path reads and writes per token and branch, in units of d."""
        return self.reads + self.writes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reads": self.reads, "writes": self.writes, "traffic": self.traffic}


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
        scheme=config.scheme.name,
        length=length,
        batch=batch,
        dtype=dtype,
        parameters={
            "total": model.num_parameters(),
            "embeddings": tables,
            "branches": branches,
            "scheme": scheme,
        },
        flops={"forward": forward, "training": 3 * forward, "mixing": mixing},
        memory=memory(model, length=length, batch=batch, prefill_chunk=prefill_chunk),
        accesses=tuple(config.scheme.traffic(model.sites)),
        pipeline=pipeline,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Memory
# ---------------------------------------------------------------------------------------------------------------------
def memory(model: Transformer, *, length: int, batch: int, prefill_chunk: int | None = None) -> dict[str, int]:
    """Bytes: activations by part, with checkpointing, the key-value cache, and the stream of a prompt.

    Within 5 % of what eager PyTorch saves on a CPU in float32 (10 % in bfloat16), for every scheme; the test is in
    tests/model/test_cost.py. Fused norms save less.
    """
    config, tokens, width = model.config, batch * length, model.embedding.weight.itemsize
    per_layer = attention_bytes(model, length) + ffn_bytes(model)
    saved, boundaries, widest = residual_bytes(config, dtype=model.embedding.weight.dtype, tokens=tokens)
    head = STATISTICS * config.vocab_size + 8  # log-probabilities of the loss, and the token ids
    branches = round(tokens * config.depth * per_layer)
    path = round(saved)
    layer = (branches + path) // config.depth
    cached = 2 * config.depth * (config.kv_heads or config.heads) * config.size_of_head
    return {
        "activations": branches + path + tokens * head,
        "branches": branches,
        "residual_path": path,
        "head": tokens * head,
        "checkpointed": round(tokens * boundaries) + layer + tokens * head,
        "kv_cache": tokens * width * cached,
        "prefill_stream": round(batch * min(length, prefill_chunk or length) * widest),
    }


def attention_bytes(model: Transformer, length: int) -> float:
    """Saved by one attention branch for one token, its input left out (it is the scheme's).

    The product q, k, v; the turned q and k under RoPE; the heads' output and its statistics. The attention matrix is
    not kept (SDPA recomputes it), except by the adaptive softmax: logits and two softmaxes. Dropout is not counted.
    """
    config, demands, dtype = model.config, model.config.scheme.demands(), model.embedding.weight.dtype
    q = config.heads * config.size_of_head
    kv = (config.kv_heads or config.heads) * config.size_of_head
    turned = config.positions == "rope"
    # Values are a view of the product, which keeps all of it, unless they are averaged with the first layer's.
    total: float = dtype.itemsize * (2 * q + 2 * kv if not (turned and config.value_residual) else q + kv)
    total += dtype.itemsize * ((q + kv) * turned + kv * (config.value_residual and not turned))
    norm = demands.qk_norm or config.qk_norm
    if norm == "unit":  # nGPT normalises what RoPE has turned, and scales that
        total += (q + kv) * (_per_element(unit, dtype) + 2 * dtype.itemsize)
    elif norm is not None:
        made = _per_element(make_norm(config.norm, 64, eps=config.eps), dtype)
        total += (q + kv) * (made + (0 if turned else dtype.itemsize))
    inner = _per_element(make_norm(config.norm, 64, eps=config.eps), dtype) + dtype.itemsize
    total += inner * (kv * demands.v_norm + q * (demands.inner_norm + config.head_norm))
    total += dtype.itemsize * q if config.softmax == "ssmax" else 0
    if config.softmax == "adaptive":
        copied = dtype.itemsize if dtype.itemsize < STATISTICS else 0
        return total + config.heads * length * (3 * STATISTICS + copied)
    return total + STATISTICS * config.heads


def ffn_bytes(model: Transformer) -> float:
    """Saved by one feed-forward branch for one token, its input left out."""
    config, demands, hidden = model.config, model.config.scheme.demands(), model.config.size_of_ffn
    dtype = model.embedding.weight.dtype
    if config.ffn == "none":
        return 0.0
    gated = config.ffn in ("swiglu", "geglu")
    # gated: gate and up, act(gate), their product; plain: before and after the activation (ReLU: only after).
    total = dtype.itemsize * (4.0 if gated else 1.0 if config.ffn == "relu" else 2.0) * hidden
    total += dtype.itemsize * (2.0 if gated else 1.0) * hidden * demands.unit
    inner = _per_element(make_norm(config.norm, 64, eps=config.eps), dtype) + dtype.itemsize
    return total + inner * hidden * demands.inner_norm


def _per_element(norm: Callable[[Tensor], Tensor], dtype: torch.dtype) -> float:
    """What a norm saves beside its input and its output."""
    x = torch.empty(8, 64, device="meta", dtype=dtype, requires_grad=True)
    if isinstance(norm, nn.Module):
        norm = norm.to("meta", dtype)
    left_out = [x, *(norm.parameters() if isinstance(norm, nn.Module) else ())]
    return saved_bytes(lambda: norm(x), left_out) / x.numel()


def residual_bytes(config: TransformerConfig, *, dtype: torch.dtype, tokens: int) -> tuple[float, float, float]:
    """Saved by the residual path for so many tokens; per token, in the streams at the layers' ends and in the widest.

    Counted, not estimated: autograd's own saved tensors of a small pass, each storage once, at two widths and two
    numbers of tokens; they are linear in both. A branch is stood in for by one matrix product, which keeps its input
    as the real ones do.
    """
    saved, ends, widest = [], [], []
    widths = probe_widths(config)
    for width in widths:
        scheme = probe(config, width, dtype=dtype)
        two, four = (_saved_by(scheme, torch.zeros(1, count, width, dtype=dtype)) for count in (2, 4))
        saved.append(two + (four - two) * (tokens - 2) / 2)
        streams = walk(scheme, torch.zeros(1, 1, width, dtype=dtype))
        ends.append(_bytes(streams[:: len(scheme.frame.sites) // config.depth]))
        widest.append(max(_bytes([stream]) for stream in streams))

    def extend(small: float, large: float) -> float:
        return small + (large - small) * (config.dim - widths[0]) / (widths[1] - widths[0])

    return extend(*saved), extend(*ends), extend(*widest)


def _saved_by(scheme: Scheme, x: Tensor) -> int:
    width = x.shape[-1]
    weight = torch.zeros(width, width, dtype=x.dtype, requires_grad=True)

    def run() -> Tensor:
        stream = scheme.open(x.requires_grad_())
        for site in scheme.frame.sites:
            h, carry = scheme.read(stream, site)
            stream = scheme.write(stream, F.linear(h, weight), carry, site)
        return F.linear(scheme.close(stream), weight)

    return saved_bytes(run, [*scheme.parameters(), *scheme.buffers(), weight])


def _bytes(streams: Iterable[Stream]) -> int:
    """Of distinct tensors; an expanded one (n equal streams at the start) counts as what it becomes."""
    distinct = {id(t): t for stream in streams for t in tensors_of(stream)}
    return sum(t.nbytes for t in distinct.values())


def saved_bytes(run: Callable[[], Any], parameters: Iterable[Tensor]) -> int:
    """Bytes of distinct storages that autograd saves during `run()`, parameters left out."""
    left_out = {parameter.untyped_storage()._cdata for parameter in parameters}
    seen: dict[int, Any] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in left_out:
            seen[storage._cdata] = storage  # held, so that its address is not given out again
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = run()
    total = sum(storage.nbytes() for storage in seen.values())
    del kept
    return total


def measured_bytes(model: nn.Module, tokens: Tensor) -> int:
    """What a training step of this model saves for its backward pass, cross-entropy included."""

    def run() -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return saved_bytes(run, [*model.parameters(), *model.buffers()])


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
