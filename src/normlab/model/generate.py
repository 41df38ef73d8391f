"""Sampling from a model, with the key-value cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normlab.errors import InputError

if TYPE_CHECKING:
    from normlab.model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> Tensor:
    """Continue `tokens` [batch, time]; temperature 0 takes the most likely token each time."""
    if not model.config.causal:
        raise InputError("a bidirectional model does not generate: build it with causal=True")
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise InputError(f"generation needs a prompt of [batch, time >= 1]; this one is {tuple(tokens.shape)}")
    if max_new_tokens < 0 or temperature < 0:
        raise InputError(f"max_new_tokens ({max_new_tokens}) and temperature ({temperature}) must not be negative")
    was_training = model.training
    model.eval()
    try:
        cache = model.new_cache(len(tokens), tokens.shape[1] + max_new_tokens) if use_cache else None
        fresh = tokens
        for _ in range(max_new_tokens):
            features = model.features(fresh if cache is not None else tokens, cache=cache)
            logits = model.logits(features[:, -1:])[:, -1]
            fresh = _pick(logits.float(), temperature, top_k, generator)
            tokens = torch.cat((tokens, fresh), dim=1)
        return tokens
    finally:
        model.train(was_training)


def _pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
