"""Learning-rate schedules: linear warm-up, then linear, cosine, or stable and a final decay."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from normlab.config import Config


class Schedule(Config):
    """`factor(n)` multiplies the peak learning rate at update n = 1..steps."""

    kind: Literal["linear", "cosine", "wsd", "constant"] = "linear"
    warmup: int = Field(default=0, ge=0)
    final: float = Field(default=0.0, ge=0, le=1)
    """Factor at the last update."""
    decay: float = Field(default=0.2, gt=0, le=1)
    """wsd: the share of all steps that the final (linear) decay takes."""

    def factor(self, n: int, steps: int) -> float:
        if n <= self.warmup:
            return n / self.warmup
        if self.kind == "constant":
            return 1.0
        begin = max(self.warmup, round(steps * (1 - self.decay))) if self.kind == "wsd" else self.warmup
        if n <= begin:
            return 1.0
        done = min((n - begin) / max(steps - begin, 1), 1.0)
        shape = 0.5 * (1 + math.cos(math.pi * done)) if self.kind == "cosine" else 1 - done
        return self.final + (1 - self.final) * shape
