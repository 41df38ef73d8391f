"""Masked text: some tokens are hidden and must be filled in from both sides (BERT). For models that are not causal."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from normlab.tasks.base import IGNORE, Batch, Task
from normlab.tasks.text import Text


class MaskedText(Task):
    """Windows of a text; each token is chosen with probability `share`, and only chosen ones are scored.

    As in BERT, of the chosen ones eight tenths become the mask, one tenth a random token, and one tenth stay as they are.
    """

    exact: ClassVar[bool] = False
    window: ClassVar[int] = 16

    task: Literal["masked_text"] = "masked_text"
    path: str | None = None
    split: Literal["train", "test"] = "train"
    share: float = Field(default=0.15, gt=0, lt=1, description="of the tokens that are to be filled in")

    @property
    def text(self) -> Text:
        return Text(path=self.path, split=self.split)

    @property
    def vocab_size(self) -> int:
        return self.text.vocab_size + 1

    @property
    def mask(self) -> int:
        """The token that hides another: the last one."""
        return self.text.vocab_size

    @property
    def longest(self) -> int | None:
        return self.text.longest

    def too_long(self, length: int) -> str:
        return self.text.too_long(length)

    def held_out(self) -> MaskedText:
        return self.replace(split="test")

    def files(self) -> dict[str, str]:
        return self.text.files()

    def inputs(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        return self.sample(count, length, generator).tokens

    def sample(self, count: int, length: int, generator: torch.Generator, *, law: bool = False) -> Batch:
        self.check(count, length)
        if law:
            self.law(torch.empty(0))
        whole = self.text.sample(count, length, generator).tokens
        chosen = torch.rand(whole.shape, generator=generator) < self.share
        fate = torch.rand(whole.shape, generator=generator)
        random = torch.randint(self.mask, whole.shape, generator=generator)
        tokens = torch.where(chosen & (fate < 0.8), self.mask, whole)
        tokens = torch.where(chosen & (fate >= 0.9), random, tokens)
        return Batch(tokens, torch.where(chosen, whole, IGNORE))
