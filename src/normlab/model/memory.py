"""How much memory a model takes: activations saved for the backward pass, streams, the key-value cache.

The branches by formula, the residual path by counting what autograd saves on a pass at a small width, which holds for
any scheme and for any way it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.model.config import TransformerConfig
from normlab.model.stages import probe, probe_widths, walk
from normlab.model.transformer import Transformer
from normlab.schemes import Scheme
from normlab.schemes.base import Stream, tensors_of
from normlab.schemes.norms import make_norm, unit

STATISTICS = 4  # norm and softmax statistics are kept in float32


@dataclass(frozen=True)
class MemoryCost:
    """Bytes: saved for the backward pass, in all and by part; with a checkpoint a layer; and for inference."""

    activations: int
    branches: int
    residual_path: int
    head: int
    checkpointed: int
    kv_cache: int
    prefill_stream: int
    prefill_sources: int


def memory(model: Transformer, *, length: int, batch: int, prefill_chunk: int | None = None) -> MemoryCost:
    """Bytes: activations by part, with checkpointing, the key-value cache, and the stream of a prompt.

    Within 5 % of what eager PyTorch saves on a CPU in float32 (10 % in bfloat16), for every scheme; the test is in
    tests/model/test_cost.py. Fused norms save less.
    """
    config, tokens, width = model.config, batch * length, model.embedding.weight.itemsize
    per_layer = attention_bytes(model, length) + ffn_bytes(model)
    saved, boundaries, widest, sources = residual_bytes(config, dtype=model.embedding.weight.dtype, tokens=tokens)
    head = STATISTICS * config.vocab_size + 8  # log-probabilities of the loss, and the token ids
    branches = round(tokens * config.depth * per_layer)
    path = round(saved)
    layer = (branches + path) // config.depth
    prompt = batch * min(length, prefill_chunk or length)
    cached = 2 * config.depth * (config.kv_heads or config.heads) * config.size_of_head
    return MemoryCost(
        activations=branches + path + tokens * head,
        branches=branches,
        residual_path=path,
        head=tokens * head,
        checkpointed=round(tokens * boundaries) + layer + tokens * head,
        kv_cache=tokens * width * cached,
        prefill_stream=round(prompt * widest),
        prefill_sources=round(prompt * sources),
    )


def attention_bytes(model: Transformer, length: int) -> float:
    """Saved by one attention branch for one token, its input left out (it is the scheme's).

    The product q, k, v; the turned q and k under RoPE; the heads' output and its statistics. The attention matrix is
    not kept (SDPA recomputes it), except by the adaptive softmax: logits, masked too, and two softmaxes. No dropout.
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
        return total + config.heads * length * (4 * STATISTICS + copied)
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
    x = torch.zeros(8, 64, dtype=dtype, requires_grad=True)
    if isinstance(norm, nn.Module):
        norm = norm.to(dtype)
    left_out = [x, *(norm.parameters() if isinstance(norm, nn.Module) else ())]
    return saved_bytes(lambda: norm(x), left_out) / x.numel()


def residual_bytes(config: TransformerConfig, *, dtype: torch.dtype, tokens: int) -> list[float]:
    """Saved by the residual path for so many tokens; and per token, in the streams at the layers' ends, in the widest
    stream, and in the sources of the widest alone (without what a scheme has computed ahead).

    Counted, not estimated: autograd's own saved tensors of a small pass, each storage once, at two widths and two
    numbers of tokens; they are linear in both. A branch is stood in for by one matrix product, which keeps its input
    as the real ones do.
    """
    widths = probe_widths(config)
    points = []
    for width in widths:
        scheme = probe(config, width, dtype=dtype)
        two, four = (_counts(scheme, torch.zeros(1, count, width, dtype=dtype), config.depth) for count in (2, 4))
        slopes = [(b - a) / 2 for a, b in zip(two, four, strict=True)]
        points.append((two[0] + slopes[0] * (tokens - 2), *slopes[1:]))
    reach = (config.dim - widths[0]) / (widths[1] - widths[0])
    return [small + (large - small) * reach for small, large in zip(*points, strict=True)]


def _counts(scheme: Scheme, x: Tensor, layers: int) -> list[int]:
    """Bytes saved, in the streams at the layers' ends, in the widest stream, and in its sources."""
    streams = walk(scheme, x)
    ends = streams[:: len(scheme.frame.sites) // layers]
    parts = [sum(t.nbytes for part in scheme.to_parts(stream) for t in part) for stream in streams]
    return [_saved_by(scheme, x), _bytes(ends), max(_bytes([stream]) for stream in streams), max(parts)]


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
    """Each storage once; one that is expanded (n equal streams at the start) counts as what it becomes."""
    sizes: dict[int, int] = {}
    for tensor in (t for stream in streams for t in tensors_of(stream)):
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = max(sizes.get(storage._cdata, storage.nbytes()), tensor.nbytes)
    return sum(sizes.values())


def saved_bytes(run: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Bytes of distinct storages that autograd saves during `run()`, parameters left out. No backward pass follows.

    Nothing is handed back to autograd: a node that held its own output through a hook would never be freed.
    """
    left_out = {parameter.untyped_storage()._cdata for parameter in parameters}
    seen: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in left_out:
            seen[storage._cdata] = storage  # held, so that its address is not given out again

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, _no_backward):
        run()
    return sum(storage.nbytes() for storage in seen.values())


def _no_backward(_: None) -> Tensor:
    raise RuntimeError("what was saved was counted, not kept: there is no backward pass here")


def measured_bytes(model: nn.Module, tokens: Tensor) -> int:
    """What a training step of this model saves for its backward pass, cross-entropy included."""

    def run() -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return saved_bytes(run, [*model.parameters(), *model.buffers()])
