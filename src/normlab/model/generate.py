"""Sampling from a model, with the key-value cache and a prompt that is read in chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normlab.errors import InputError
from normlab.model.attention import Cache

if TYPE_CHECKING:
    from normlab.model.transformer import Transformer


@torch.no_grad()
def prefill(
    model: Transformer, tokens: Tensor, cache: Cache, *, chunk: int | None = None, attention_mask: Tensor | None = None
) -> Tensor:
    """Read `tokens` [batch, time] into the cache; returns the last token's features [batch, 1, dim].

    The stream of a scheme with many sources (Block Attention Residuals: N + 1 hidden states a token) is needed for the
    tokens at hand only: keys and values are all that later tokens look at. With `chunk` the prompt passes in pieces, so
    that stream takes chunk, not time, tokens of memory; the result is the same. `attention_mask` is [batch, keys].
    """
    if chunk is not None and chunk < 1:
        raise InputError(f"a prefill chunk holds at least 1 token, not {chunk}; None reads the prompt at once")
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise InputError(f"a prompt is [batch, time >= 1]; this one is {tuple(tokens.shape)}")
    if not model.config.causal and chunk is not None and chunk < tokens.shape[1]:
        raise InputError("a bidirectional model looks at the whole prompt: it cannot be read in chunks")
    cache.check(batch=len(tokens), length=cache.length + tokens.shape[1])  # before any chunk is written
    features = None
    for piece in tokens.split(chunk or tokens.shape[1], dim=1):
        seen = None if attention_mask is None else attention_mask[:, : cache.length + piece.shape[1]]
        features = model.features(piece, attention_mask=seen, cache=cache)[:, -1:]
    assert features is not None  # the prompt is not empty
    return features


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
    prefill_chunk: int | None = None,
) -> Tensor:
    """Continue `tokens` [batch, time]; temperature 0 takes the most likely token each time.

    `prefill_chunk` bounds the memory of a long prompt's depth history, see `prefill`.
    """
    if not model.config.causal:
        raise InputError("a bidirectional model does not generate: build it with causal=True")
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise InputError(f"generation needs a prompt of [batch, time >= 1]; this one is {tuple(tokens.shape)}")
    if max_new_tokens < 0 or not 0 <= temperature < math.inf:
        raise InputError(
            f"max_new_tokens ({max_new_tokens}) and temperature ({temperature}) must be finite and not negative"
        )
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k keeps at least one token, not {top_k}; None keeps all")
    longest = model.config.max_length if model.position is not None else None
    if longest is not None and tokens.shape[1] + max_new_tokens > longest:
        raise InputError(
            f"{tokens.shape[1]} tokens and {max_new_tokens} new ones are more than the {longest} learned positions"
        )
    if prefill_chunk is not None and (prefill_chunk < 1 or not use_cache):
        raise InputError(
            f"prefill_chunk is {prefill_chunk} with use_cache={use_cache}: it is at least 1, and needs the cache"
        )
    with evaluating(model):
        cache = model.new_cache(len(tokens), tokens.shape[1] + max_new_tokens) if use_cache else None
        fresh = tokens
        for _ in range(max_new_tokens):
            if cache is None:
                features = model.features(tokens)[:, -1:]
            else:
                features = model.prefill(fresh, cache, chunk=prefill_chunk)
            fresh = _pick(model.logits(features)[:, -1].float(), temperature, top_k, generator)
            tokens = torch.cat((tokens, fresh), dim=1)
        return tokens


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for a while; afterwards each part is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, 1e-30)  # shifted first: no overflow
    return torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)
