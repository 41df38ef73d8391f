"""What a task is: inputs, targets, and the exact law of the next token at every prefix.

The law is a property of the task and never of how inputs were drawn. Where targets are sampled, the target at a prefix
is a draw from the law at that prefix, so that cross-entropy against it is an unbiased estimate of the exact one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from normlab.config import Config
from normlab.errors import InputError, UnsupportedError

IGNORE = -100  # what torch's cross_entropy skips


@dataclass(frozen=True)
class Batch:
    """`targets[b, t]` and `law[b, t]` belong to the prefix `tokens[b, : t + 1]`."""

    tokens: Tensor  # [batch, length], int64
    targets: Tensor  # [batch, length], int64; IGNORE where nothing is scored
    law: Tensor | None = None  # [batch, length, vocab], where asked for


class Task(Config, ABC):
    """A frozen configuration that samples batches and knows its own answer."""

    what: ClassVar[str] = "task"
    exact: ClassVar[bool] = True
    """Whether `law` and `legal` exist (they do not for natural text)."""
    window: ClassVar[int] = 1
    """Over how many of the last prefixes a test length averages; automata need one period or more."""

    targets: Literal["sampled", "exact"] = "sampled"

    @property
    def rowwise(self) -> bool:
        """Is one batch of n m sequences the same as n batches of m, drawn one after the other?"""
        return False

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of possible answers, and of input tokens unless `embedding` says otherwise."""

    @property
    def longest(self) -> int | None:
        """The longest input that exists, or None."""
        return None

    @abstractmethod
    def inputs(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """[count, length] tokens."""

    def law(self, tokens: Tensor) -> Tensor:
        """The exact next-token distribution at every prefix, [batch, length, vocab] in float64.

        A prefix that has no continuation (it is itself illegal, or nothing is left to say) has a row of zeros.
        """
        raise UnsupportedError(f"the task {self.name!r} has no known next-token law")

    def legal(self, tokens: Tensor) -> Tensor:
        """Which tokens may come next, [batch, length, vocab] bool."""
        return self.law(tokens) > 0

    def held_out(self) -> Task:
        """The same task on data that training never saw; where inputs are drawn afresh, the task itself."""
        return self

    def files(self) -> dict[str, str]:
        """The files that the data come from, each with a digest of what this process read there."""
        return {}

    def embedding(self, dim: int) -> nn.Module | None:
        """A module that embeds this task's tokens, where a table of `vocab_size` rows does not fit; or None."""
        return None

    def sample(self, count: int, length: int, generator: torch.Generator, *, law: bool = False) -> Batch:
        """`count` sequences of `length` tokens, with targets."""
        self.check(count, length)
        tokens = self.inputs(count, length, generator)
        exact = self.law(tokens)
        return Batch(tokens, draw(exact, generator), exact if law or self.targets == "exact" else None)

    def check(self, count: int, length: int) -> None:
        """One sentence for a shape that cannot be."""
        if count < 1:
            raise InputError(f"a batch of {count} sequences cannot be drawn from {self.name!r}; ask for 1 or more")
        if length < 1:
            raise InputError(f"a length of {length} was asked of the task {self.name!r}; lengths start at 1")
        if self.longest is not None and length > self.longest:
            raise InputError(self.too_long(length))

    def too_long(self, length: int) -> str:
        return f"the task {self.name!r} has inputs of at most {self.longest} tokens, but {length} were asked"

    @property
    def name(self) -> str:
        return getattr(self, "task", type(self).__name__)


def draw(law: Tensor, generator: torch.Generator) -> Tensor:
    """One draw from each row; IGNORE where the row is zero.

    Inverse transform on the cumulative sum: exact zeros are never drawn, since u < total and the comparison is strict.
    """
    total = law.cumsum(-1)
    u = torch.rand(law.shape[:-1], generator=generator, dtype=law.dtype).unsqueeze(-1) * total[..., -1:]
    # searchsorted(right=True) is the first index whose cumulative sum exceeds u, hence one of positive probability.
    picked = torch.searchsorted(total, u, right=True).squeeze(-1)
    return torch.where(total[..., -1] > 0, picked.clamp_max(law.shape[-1] - 1), IGNORE)
