"""Maximum Retrieval: each item has a priority and a class; answer the class of the highest priority so far."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from normlab.tasks.base import Task

LEVELS = 2**20


class MaxRetrieval(Task):
    """Items are priority in (0, 1) and one of `classes` classes.

    An item travels as one integer, `level * classes + class`, with priority `(level + 1/2) / 2^20`, so that a
    sequence is tokens here as everywhere; `embedding` turns it back into the number and the class. Of equal
    priorities the earliest wins. Every prefix is a question of its own.
    """

    task: Literal["max_retrieval"] = "max_retrieval"
    classes: int = Field(default=10, ge=2)
    levels: ClassVar[int] = LEVELS

    @property
    def vocab_size(self) -> int:
        return self.classes

    def inputs(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.levels * self.classes, (count, length), generator=generator)

    def law(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        # The position is the tie-break: an earlier item of the same level has the larger key.
        behind = length - 1 - torch.arange(length, device=tokens.device)
        best = (tokens // self.classes * length + behind).cummax(-1).indices
        answer = (tokens % self.classes).gather(1, best)
        return nn.functional.one_hot(answer, self.classes).to(torch.float64)

    def embedding(self, dim: int) -> nn.Module:
        return ItemEmbedding(self.classes, dim)


class ItemEmbedding(nn.Module):
    """A row per class, and one more: the direction along which the priority moves an item."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.classes = classes
        self.weight = nn.Parameter(torch.randn(classes + 1, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        level = torch.div(tokens, self.classes, rounding_mode="floor")
        priority = ((level + 0.5) / LEVELS).to(self.weight.dtype).unsqueeze(-1)
        return nn.functional.embedding(tokens % self.classes, self.weight) + priority * self.weight[-1]
