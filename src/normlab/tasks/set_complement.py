"""Set Complement: given tokens that are all different, the next one is uniform over those not yet seen."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from normlab.tasks.base import Batch, Task, draw


class SetComplement(Task):
    """`vocab` tokens; the law at a prefix is uniform over the tokens that do not occur in it (arXiv 2510.08341).

    Without replacement an input is the beginning of a random permutation, whose own next token is an exact draw from
    the law. With replacement inputs are independent uniform tokens, targets are drawn separately, and a prefix that
    has seen everything has no target.
    """

    task: Literal["set_complement"] = "set_complement"
    vocab: int = Field(default=32, ge=2)
    replacement: bool = False

    @property
    def vocab_size(self) -> int:
        return self.vocab

    @property
    def longest(self) -> int | None:
        return None if self.replacement else self.vocab - 1

    @property
    def rowwise(self) -> bool:
        return not self.replacement  # a permutation is its own row of uniform numbers, targets included

    def too_long(self, length: int) -> str:
        return (
            f"set complement over {self.vocab} tokens has inputs of at most {self.vocab - 1} distinct tokens (one must "
            f"be left to answer), but a length of {length} was asked; shorten it, or set vocab={length + 1} or more"
        )

    def inputs(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        if self.replacement:
            return torch.randint(self.vocab, (count, length), generator=generator)
        return self._permutations(count, generator)[:, :length]

    def _permutations(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.rand(count, self.vocab, generator=generator).argsort(-1)

    def law(self, tokens: Tensor) -> Tensor:
        absent = ~prefix_sets(tokens, self.vocab)
        left = absent.sum(-1, keepdim=True, dtype=torch.float64)
        return absent / left.clamp_min(1)

    def sample(self, count: int, length: int, generator: torch.Generator, *, law: bool = False) -> Batch:
        self.check(count, length)
        if self.replacement:
            tokens = self.inputs(count, length, generator)
            exact = self.law(tokens)
            return Batch(tokens, draw(exact, generator), exact if law or self.targets == "exact" else None)
        whole = self._permutations(count, generator)
        tokens = whole[:, :length]
        return Batch(tokens, whole[:, 1 : length + 1], self.law(tokens) if law or self.targets == "exact" else None)


def prefix_sets(tokens: Tensor, vocab: int) -> Tensor:
    """[batch, length, vocab] bool: does the prefix contain the token?"""
    first = torch.full((tokens.shape[0], vocab), tokens.shape[1], dtype=torch.int64, device=tokens.device)
    where = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    first = first.scatter_reduce(1, tokens, where, "amin")
    return first.unsqueeze(1) <= torch.arange(tokens.shape[1], device=tokens.device)[None, :, None]
