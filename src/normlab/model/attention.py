"""Causal or bidirectional self-attention through `scaled_dot_product_attention`, with grouped queries."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.model.config import TransformerConfig
from normlab.model.layers import Linear
from normlab.model.positions import rotate
from normlab.schemes import Demands, Site
from normlab.schemes.norms import make_norm, precise, unit

# Velickovic et al. 2024, softmax is not enough: temperature from the entropy, powers descending.
ADAPTIVE_POLYNOMIAL = (-0.037, 0.481, -2.3, 4.917, -1.791)
ADAPTIVE_FROM = 0.5
WEIGHTS = ("adaptive", "sparsemax", "top_k")
"""Kinds of softmax whose weights are computed one by one."""


class Cache:
    """Keys and values of the tokens seen so far, for decoding. Nothing else persists between steps, in any scheme."""

    def __init__(self, config: TransformerConfig, *, batch: int, length: int, device: torch.device, dtype: torch.dtype):
        shape = (batch, config.kv_heads or config.heads, length, config.size_of_head)
        self.keys = [torch.empty(shape, device=device, dtype=dtype) for _ in range(config.depth)]
        self.values = [torch.empty(shape, device=device, dtype=dtype) for _ in range(config.depth)]
        self.batch, self.capacity, self.length = batch, length, 0

    def check(self, *, batch: int, length: int) -> None:
        """Do `length` tokens of `batch` sequences fit?"""
        if batch != self.batch:
            raise InputError(f"a cache made for a batch of {self.batch} does not serve a batch of {batch}")
        if length > self.capacity:
            raise InputError(f"{length} tokens do not fit into a cache made for {self.capacity}")

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + key.shape[2]
        keys, values = self.keys[layer - 1], self.values[layer - 1]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]


@dataclass
class Pass:
    """What one forward pass shares among its branches."""

    rope: tuple[Tensor, Tensor] | None = None
    padding: Tensor | None = None  # [batch, keys], True where a token may be seen
    cache: Cache | None = None
    first_values: list[Tensor] = field(default_factory=list)  # value residual


class Attention(nn.Module):
    """softmax(q k^T) v over heads; the branch of the residual path, with no norm of its own unless asked."""

    def __init__(self, config: TransformerConfig, site: Site, demands: Demands) -> None:
        super().__init__()
        self.config, self.layer = config, site.layer
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        self.head_dim = d = config.size_of_head
        self.qkv = Linear(config.dim, (self.heads + 2 * self.kv_heads) * d, bias=config.bias)
        self.out = Linear(self.heads * d, config.dim, bias=config.bias)
        self.qk_norm = demands.qk_norm or config.qk_norm
        if self.qk_norm == "full":
            self.query_norm = make_norm(config.norm, self.heads * d, eps=config.eps)
            self.key_norm = make_norm(config.norm, self.kv_heads * d, eps=config.eps)
        elif self.qk_norm == "head":
            self.query_norm = make_norm(config.norm, d, eps=config.eps)
            self.key_norm = make_norm(config.norm, d, eps=config.eps)
        elif self.qk_norm == "unit":  # nGPT: stored at the scale of the weights, used as 1
            self.stored_scale = config.dim**-0.5
            self.qk_scale = nn.Parameter(torch.empty(self.kv_heads, d))  # one for queries and keys, as the authors'
        self.value_norm = make_norm(config.norm, d, eps=config.eps) if demands.v_norm else None
        self.inner_norm = make_norm(config.norm, self.heads * d, eps=config.eps) if demands.inner_norm else None
        self.head_norm = make_norm(config.norm, d, eps=config.eps) if config.head_norm else None
        self.sharpness = nn.Parameter(torch.empty(self.heads)) if config.softmax == "ssmax" else None
        self.scale = config.attention_scale or (d**0.5 if self.qk_norm == "unit" else d**-0.5)

    def matrices(self) -> dict[str, Tensor]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        query, key, value = self.qkv.weight.data.split([q, kv, kv])
        return {"query": query, "key": key, "value": value, "out": self.out.weight.data}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for linear in (self.qkv, self.out):
            linear.reset_bias_()
        if self.qk_norm == "unit":
            self.qk_scale.fill_(self.stored_scale)
        if self.sharpness is not None:
            self.sharpness.fill_(1.0)

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        batch, time, _ = x.shape
        heads, kv, d = self.heads, self.kv_heads, self.head_dim
        qk, v = self.qkv(x).split([(heads + kv) * d, kv * d], dim=-1)
        q, k = self._queries_and_keys(qk.unflatten(-1, (heads + kv, d)), shared)
        v = v.unflatten(-1, (kv, d))
        if self.value_norm is not None:
            v = self.value_norm(v)
        if self.config.value_residual:
            v = self._with_first(v, shared)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if shared.cache is not None:
            k, v = shared.cache.extend(self.layer, k, v)
        y = self._attend(q, k, v, shared)
        if self.head_norm is not None:
            y = self.head_norm(y)
        y = y.transpose(1, 2).reshape(batch, time, heads * d)
        return self.out(y if self.inner_norm is None else self.inner_norm(y))

    def _queries_and_keys(self, qk: Tensor, shared: Pass) -> tuple[Tensor, Tensor]:
        """[batch, time, heads + kv_heads, head_dim] -> q, k: normed, then turned by RoPE (nGPT: the other way)."""
        if self.qk_norm in ("head", "full"):
            q, k = qk.split([self.heads, self.kv_heads], dim=2)
            if self.qk_norm == "full":
                q = self.query_norm(q.flatten(2)).view_as(q)
                k = self.key_norm(k.flatten(2)).view_as(k)
            else:
                q, k = self.query_norm(q), self.key_norm(k)
            if shared.rope is None:
                return q, k
            return rotate(q, shared.rope), rotate(k, shared.rope)
        if shared.rope is not None:
            qk = rotate(qk, shared.rope)
        q, k = qk.split([self.heads, self.kv_heads], dim=2)
        if self.qk_norm == "unit":
            scale = (self.qk_scale / self.stored_scale).to(q.dtype)
            q = unit(q) * scale.repeat_interleave(self.heads // self.kv_heads, dim=0)
            k = unit(k) * scale
        return q, k

    def _with_first(self, v: Tensor, shared: Pass) -> Tensor:
        if self.layer == 1:  # by layer, not by "is it set": checkpointing runs layer 1 a second time
            shared.first_values[:] = [v]
            return v
        return 0.5 * (v + shared.first_values[0])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, shared: Pass) -> Tensor:
        time, keys = q.shape[2], k.shape[2]
        mask = self._mask(time, keys, shared.padding, q.device)
        if self.sharpness is not None:
            q = q * self._log_counts(time, keys, mask, q)
        if self.config.softmax in WEIGHTS:
            return self._attend_explicitly(q, k, v, mask, causal=self.config.causal and time > 1 and mask is None)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=self.config.causal and mask is None and time > 1,
            dropout_p=self.config.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=self.kv_heads != self.heads,
        )

    def _mask(self, time: int, keys: int, padding: Tensor | None, device: torch.device) -> Tensor | None:
        """True where a query may look; None where causality alone (or nothing) decides and SDPA knows it."""
        mask = None
        if self.config.causal and keys != time and time > 1:  # a chunk that continues a cached prefix
            mask = torch.ones(time, keys, dtype=torch.bool, device=device).tril(keys - time)
        if padding is not None:
            if mask is None and self.config.causal and time > 1:
                mask = torch.ones(time, keys, dtype=torch.bool, device=device).tril()
            seen = padding[:, None, None, :]
            mask = seen if mask is None else seen & mask
        return mask

    def _log_counts(self, time: int, keys: int, mask: Tensor | None, q: Tensor) -> Tensor:
        """SSMax: s log n with n the number of keys that each query sees (Nakanishi 2025); log 1 = 0 is one key."""
        assert self.sharpness is not None
        if mask is not None:
            counts = mask.sum(-1, keepdim=True)
        elif self.config.causal:
            counts = torch.arange(keys - time + 1, keys + 1, device=q.device)[:, None]
        else:
            counts = torch.full((time, 1), keys, device=q.device)
        return (self.sharpness[:, None, None] * counts.clamp_min(1).float().log()).to(q.dtype)

    def _attend_explicitly(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Weights that no fused attention computes, from `explicit_weights`."""
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        logits = precise(q @ k.transpose(-1, -2)) * self.scale
        if causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            # Finite, because a padded query may see nothing at all, and its NaN would reach the others' gradients.
            logits = logits.masked_fill(~mask, -1e30)
        weights = explicit_weights(logits, mask, self.config).to(v.dtype)
        return F.dropout(weights, self.config.dropout, self.training) @ v


def explicit_weights(logits: Tensor, mask: Tensor | None, config: TransformerConfig) -> Tensor:
    """The weights of the configured softmax; logits are finite, far down where masked."""
    if config.softmax == "top_k":
        return top_k_weights(logits, config.top_k)
    return adaptive_weights(logits, mask) if config.softmax == "adaptive" else sparsemax(logits)


def sparsemax(logits: Tensor) -> Tensor:
    """The nearest point of the simplex: max(z - tau, 0), tau so that they sum to 1 (Martins and Astudillo 2016)."""
    z = logits - logits.amax(-1, keepdim=True)
    ordered = z.sort(-1, descending=True).values.clamp_min(-2.0)  # those further down than 1 are never in the support
    ranks = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    sums = ordered.cumsum(-1)
    count = (1 + ranks * ordered > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, count - 1) - 1) / count
    return (z - tau).clamp_min(0)


def top_k_weights(logits: Tensor, k: int) -> Tensor:
    """softmax over the k largest logits; ties at the border all stay."""
    if logits.shape[-1] <= k:
        return logits.softmax(-1)
    border = logits.topk(k, -1).values[..., -1:]
    return logits.masked_fill(logits < border, -torch.inf).softmax(-1)


def adaptive_weights(logits: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(beta logits) with beta from the entropy of softmax(logits); logits are finite, far down where masked."""
    # log Z - <w, z>, not -<w, log w>: the latter has no gradient where a weight is zero.
    seen = logits if mask is None else logits.masked_fill(~mask, 0.0)
    entropy = torch.logsumexp(logits, -1, keepdim=True) - (logits.softmax(-1) * seen).sum(-1, keepdim=True)
    beta = torch.zeros_like(entropy)
    for coefficient in ADAPTIVE_POLYNOMIAL:
        beta = beta * entropy + coefficient
    beta = torch.where(entropy > ADAPTIVE_FROM, beta.clamp_min(1.0), torch.ones_like(beta))
    return (logits * beta).softmax(-1)
