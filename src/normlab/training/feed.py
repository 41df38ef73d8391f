"""Batches for K members at once, each from its own generator and equal to what a separate run would draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normlab.tasks import Batch, Task

AHEAD = 64


class Feed:
    """`next(feed)` is a batch with a leading axis of members.

    Where a task draws row by row (`task.rowwise`) the batches of many steps are drawn together: small batches cost
    more in calls than in numbers. A checkpoint holds the generators as they were before those steps, and how many of
    them are used.
    """

    def __init__(self, task: Task, count: int, length: int, generators: Sequence[torch.Generator]) -> None:
        self.task, self.count, self.length, self.generators = task, count, length, list(generators)
        self.ahead = AHEAD if task.rowwise else 1
        self.before = [g.get_state() for g in self.generators]
        self.used = self.ahead
        self.drawn: list[Batch] = []

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        if self.used == self.ahead:
            self._draw()
        start = self.used * self.count
        self.used += 1
        rows = slice(start, start + self.count)

        def stack(name: str) -> Tensor:
            return torch.stack([getattr(batch, name)[rows] for batch in self.drawn])

        law = stack("law") if self.drawn[0].law is not None else None
        return Batch(stack("tokens"), stack("targets"), law)

    def _draw(self) -> None:
        self.before = [g.get_state() for g in self.generators]
        self.drawn = [self.task.sample(self.count * self.ahead, self.length, g) for g in self.generators]
        self.used = 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        return {str(i): state for i, state in enumerate(self.before)}, {"used": self.used}

    def load(self, states: dict[str, Tensor], rest: dict[str, int]) -> None:
        for member, state in states.items():
            self.generators[int(member)].set_state(state)
        self._draw()
        self.used = rest["used"]
