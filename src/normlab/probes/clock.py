"""Stages of a diagnosis: told on, timed, and stopped where a budget of seconds is used up."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # (stage, done, total)


class OutOfTime(Exception):
    """Ends a measurement that the budget does not cover."""


class Clock:
    """Tells the progress on, and keeps how long each stage took.

    The budget counts from the start of the measuring; what everything rests on is measured whatever it takes.
    """

    def __init__(self, progress: Progress | None = None, *, budget: float | None = None) -> None:
        self.progress, self.budget, self.start = progress, budget, time.perf_counter()
        self.begins: list[tuple[str, float]] = []
        self.left_out: list[str] = []

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        if not self.begins or self.begins[-1][0] != stage:
            self.begins.append((stage, time.perf_counter()))
        if self.progress is not None:
            self.progress(stage, done, total)

    def passed(self) -> float:
        return time.perf_counter() - self.start

    def over(self) -> bool:
        return self.budget is not None and self.passed() >= self.budget

    def allows(self, what: str) -> bool:
        """May this optional measurement begin? If not, it is kept as left out."""
        if self.over():
            self.left_out.append(what)
        return not self.over()

    def note(self) -> list[str]:
        """What was left out, as a sentence, or nothing."""
        if not self.left_out:
            return []
        return [f"the budget of {self.budget:g} s was used up, so these were left out: {', '.join(self.left_out)}"]

    def seconds(self) -> float:
        return round(self.passed(), 1)

    def stages(self) -> dict[str, float]:
        ends = [*(begin for _, begin in self.begins[1:]), time.perf_counter()]
        return {name: round(end - begin, 1) for (name, begin), end in zip(self.begins, ends, strict=True)}
