"""Attention weights of any model that calls `scaled_dot_product_attention`, by computing them beside the call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale q k^T + mask), [..., heads, queries, keys], as the documentation of torch defines it."""
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = query.float() @ key.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        logits = logits.masked_fill(~allowed, -math.inf)
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    return logits.softmax(-1)


_SOFTMAX = (torch.softmax, torch.nn.functional.softmax, torch.Tensor.softmax)


def softmax_weights(result: Tensor) -> Tensor | None:
    """Attention weights [batch, heads, queries, keys] in the result of a softmax; None where it is another one.

    With a learned sink (GPT-OSS) there is one more key than queries, which no token owns: the rest is scaled to sum to 1.
    """
    if result.dim() not in (3, 4) or result.shape[-1] < 2 or result.shape[-2] < 2:
        return None
    weights = result.detach() if result.dim() == 4 else result.detach().unsqueeze(0)
    if weights.shape[-1] == weights.shape[-2] + 1:
        weights = weights[..., :-1]
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
    return weights if weights.shape[-1] == weights.shape[-2] else None


class WatchAttention(TorchFunctionMode):
    """Hands the weights of every such call, and of every softmax over keys, to `keep`: [batch, heads, queries, keys]."""

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.keep = keep

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function is scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            given = {k: v for k, v in given.items() if k not in ("value", "dropout_p")}
            with torch.no_grad():
                weights = attention_weights(given.pop("query"), given.pop("key"), **given)
            while weights.dim() < 4:
                weights = weights.unsqueeze(-3)
            self.keep(weights)
        elif function in _SOFTMAX and isinstance(result, Tensor):
            found = softmax_weights(result)
            if found is not None:
                self.keep(found)
        return result
