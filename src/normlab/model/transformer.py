"""The Transformer: the same loop for every scheme.

stream = scheme.open(embed(tokens))
for site, branch in branches:
    x, carry = scheme.read(stream, site)
    stream = scheme.write(stream, branch(x), carry, site)
logits = head(scheme.close(stream))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normlab.errors import ConfigError, InputError
from normlab.model.attention import Attention, Cache, Pass
from normlab.model.config import TransformerConfig
from normlab.model.generate import evaluating, generate, prefill
from normlab.model.layers import Embedding, FeedForward, Linear
from normlab.model.positions import rope_table, sinusoidal
from normlab.schemes import Branch, DepthMixing, depth_mixing
from normlab.schemes.base import Stream


class Transformer(nn.Module):
    """model(tokens[batch, time]) -> logits[batch, time, vocab]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, self.sites = config, config.sites()
        demands = config.scheme.demands()
        self.scheme = config.scheme.build(config.frame())
        self.embedding = Embedding(config.vocab_size, config.dim)
        self.position = Embedding(config.max_length, config.dim) if config.positions == "learned" else None
        self.branches = nn.ModuleList(
            Attention(config, site, demands) if site.kind == "attention" else FeedForward(config, demands)
            for site in self.sites
        )
        self.head = None if config.tie_embeddings else Linear(config.dim, config.vocab_size, bias=False)
        # nGPT: logits of unit vectors need a learned size; stored at the scale of the weights.
        self.logit_scale = nn.Parameter(torch.empty(config.vocab_size)) if demands.unit else None
        self.checkpointing = False
        if self.embedding.weight.device.type != "meta":
            self.init_weights()

    # -- weights -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def init_weights(self) -> None:
        """Fill every parameter and buffer; call it after `to_empty` when the model was built on the meta device."""
        self.scheme.init_weights()
        for table in self.token_tables():
            nn.init.normal_(table, std=self.config.std_of_embedding)
        if self.position is not None:
            nn.init.normal_(self.position.weight, std=self.config.std_of_tables)
        for site, branch in zip(self.sites, self.branches, strict=True):
            for part in branch.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
            self.scheme.init_branch_(cast(Branch, branch), site)
        if self.logit_scale is not None:
            self.logit_scale.fill_(self.config.dim**-0.5)
        self.scheme.after_step_(self)

    def token_tables(self) -> Iterator[Tensor]:
        """The matrices with a row per token: the embedding and, if it is not tied, the head."""
        yield self.embedding.weight.data
        if self.head is not None:
            yield self.head.weight.data

    @torch.no_grad()
    def replace_embedding_(self, embedding: nn.Module) -> None:
        """Embed tokens by a module whose `weight` has rows of the width, filled like a table; not with a tied head."""
        if self.head is None:
            raise ConfigError("tie_embeddings: a head cannot be tied to an embedding that is no table; give false")
        nn.init.normal_(cast(Tensor, embedding.weight), std=self.config.std_of_embedding)
        self.embedding = cast(Embedding, embedding)
        self.scheme.after_step_(self)

    def after_step_(self) -> None:
        """Call after each optimizer step; only schemes that constrain the weights (nGPT) do anything."""
        self.scheme.after_step_(self)

    def enable_checkpointing(self, on: bool = True) -> None:
        """Recompute each layer in the backward pass instead of keeping its activations."""
        self.checkpointing = on

    # -- the forward pass ------------------------------------------------------------------------------------------
    def forward(self, tokens: Tensor, *, attention_mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Token ids [batch, time] -> logits [batch, time, vocabulary]; with a cache, of the new tokens."""
        return self.logits(self.features(tokens, attention_mask=attention_mask, cache=cache))

    def features(self, tokens: Tensor, *, attention_mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """What the head sees: [batch, time, dim]. `attention_mask` is [batch, keys], true (or 1) for real tokens."""
        start = 0 if cache is None else cache.length
        self._check(tokens, start, cache)
        self._check_mask(attention_mask, len(tokens), start + tokens.shape[1])
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        shared = self.new_pass(positions, attention_mask=attention_mask, cache=cache)
        stream = self.scheme.open(self.embed(tokens, positions))
        stream = self.run(stream, shared, 0, len(self.sites))
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.scheme.close(stream)

    def new_pass(self, positions: Tensor, *, attention_mask: Tensor | None = None, cache: Cache | None = None) -> Pass:
        """What the branches of one forward pass share."""
        shared = Pass(cache=cache, padding=None if attention_mask is None else attention_mask.bool())
        if self.config.positions == "rope":
            shared.rope = rope_table(positions, self.config.size_of_head, self.config.rope_theta)
        return shared

    def run(self, stream: Stream, shared: Pass, first: int, last: int) -> Stream:
        """Branches first .. last - 1: the whole model, or a pipeline stage, which may begin or end inside a layer."""
        per_layer = len(self.sites) // self.config.depth
        for start in range(first, last, per_layer):
            end = min(start + per_layer, last)
            if self.checkpointing and torch.is_grad_enabled():
                stream = checkpoint(self._layer, stream, shared, start, end, use_reentrant=False)
            else:
                stream = self._layer(stream, shared, start, end)
        return stream

    def _layer(self, stream: Stream, shared: Pass, first: int, last: int) -> Stream:
        for site, branch in zip(self.sites[first:last], self.branches[first:last], strict=True):
            x, carry = self.scheme.read(stream, site)
            stream = self.scheme.write(stream, self._drop(branch(x, shared)), carry, site)
        return stream

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training) if self.config.dropout else x

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """What opens the stream: token embeddings, with positions where they are added."""
        if torch.compiler.is_compiling():
            x = self.embedding(tokens)
        else:
            try:
                x = self.embedding(tokens)
            except IndexError:
                raise InputError(self._outside(tokens)) from None
        if (scale := self.config.scale_of_embedding) != 1.0:
            x = x * scale
        if self.position is not None:
            x = x + self.position(positions)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoidal(positions, self.config.dim).to(x.dtype)
        return self._drop(x)

    def logits(self, features: Tensor) -> Tensor:
        """Logits of what the scheme closed with."""
        logits = F.linear(features, self.embedding.weight) if self.head is None else self.head(features)
        if self.logit_scale is not None:
            logits = logits * (self.logit_scale * self.config.dim**0.5).to(logits.dtype)
        return logits

    def _check(self, tokens: Tensor, start: int, cache: Cache | None) -> None:
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
            given = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"tokens are a tensor of whole numbers (torch.long); these are {given}")
        if tokens.dim() != 2:
            raise InputError(f"tokens are [batch, time]; these have the shape {tuple(tokens.shape)}")
        if tokens.device != self.embedding.weight.device:
            raise InputError(
                f"the tokens are on {tokens.device} and the model on {self.embedding.weight.device}: "
                "move one of them, for example tokens.to(model.embedding.weight.device)"
            )
        length = start + tokens.shape[1]
        if self.position is not None and length > self.config.max_length:
            raise InputError(
                f"a sequence of {length} tokens is longer than the {self.config.max_length} learned positions; "
                "raise max_length or shorten the sequence"
            )
        if cache is not None:
            cache.check(batch=len(tokens), length=length)
            if not self.config.causal:
                raise InputError("a bidirectional model looks ahead, so what a cache holds would change: leave it out")
            if torch.is_grad_enabled() and self.embedding.weight.requires_grad:
                raise InputError("decoding with a cache is for inference: run it under torch.no_grad()")

    def _check_mask(self, mask: Tensor | None, batch: int, keys: int) -> None:
        if mask is None:
            return
        if mask.shape != (batch, keys):
            raise InputError(
                f"the attention mask is [batch, keys] = {(batch, keys)}, true for real tokens; got {tuple(mask.shape)}"
            )
        if mask.is_floating_point():
            raise InputError(
                "the attention mask holds true (or 1) for real tokens; an additive mask of floats is refused"
            )

    def _outside(self, tokens: Tensor) -> str:
        return (
            f"token ids must be from 0 to {self.config.vocab_size - 1}, but these run from {int(tokens.min())} "
            f"to {int(tokens.max())}: is this the right tokenizer?"
        )

    # -- generation and accounting -----------------------------------------------------------------------------------
    generate = generate
    prefill = prefill

    def new_cache(self, batch: int, length: int) -> Cache:
        """An empty cache of keys and values for decoding."""
        weight = self.embedding.weight
        return Cache(self.config, batch=batch, length=length, device=weight.device, dtype=weight.dtype)

    def num_parameters(self, *, embeddings: bool = True) -> int:
        """Parameters, tied ones once; without `embeddings`, the tables of tokens and positions are left out."""
        total = sum(p.numel() for p in self.parameters())
        if embeddings:
            return total
        tables = [self.embedding.weight, *([] if self.position is None else [self.position.weight])]
        tables += [] if self.head is None else [self.head.weight]
        return total - sum(table.numel() for table in tables)

    def flops_per_token(self, length: int, *, training: bool = False) -> int:
        """Multiply-adds count two. Matrix products of branches and head, and attention over the mean visible length.

        The scheme's own arithmetic is left out; it is small except for mhc (+30 % at width 64), hyper_connections and
        query="input". `normlab cost` counts it.
        """
        products = sum(w.numel() for branch in self.branches for w in cast(Branch, branch).matrices().values())
        products += (self.embedding if self.head is None else self.head).weight.numel()
        visible = (length + 1) / 2 if self.config.causal else length
        attention = 2 * self.config.depth * self.config.heads * self.config.size_of_head * visible
        return round(2 * (products + attention) * (3 if training else 1))

    def compile_branches(self, **options: object) -> Transformer:
        """Compile attention and FFN alone, in place, and leave the residual path to its own kernels.

        Branches of one kind share their code, so this takes as long at any depth; compiling the whole model takes
        longer the deeper it is. `options` go to torch.compile.
        """
        for branch in self.branches:
            branch.compile(**options)
        return self

    def depth_mixing(self, tokens: Tensor) -> Tensor:
        """M with h_l = sum_i M[l, i] v_i, for every token: [batch, time, reads, sources]. See `depth_mixing_parts`."""
        return self.depth_mixing_parts(tokens).matrix

    def depth_mixing_parts(self, tokens: Tensor) -> DepthMixing:
        """The matrix with the reads h and the sources v that it relates."""
        checkpointing, self.checkpointing = self.checkpointing, False
        try:
            with evaluating(self):
                return depth_mixing(self.scheme, lambda: self.features(tokens))
        finally:
            self.checkpointing = checkpointing
