"""How a run is judged: by its loss on held-out data and a look into its layers, or by length.

Torch is not imported here: requests hold these.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import Self

from normlab.config import Config
from normlab.experiments.request import AnyTask

EFFECT_SEQUENCES = 2  # for the effects of branches: each goes through the model once more for every branch


class HeldOut(Config):
    """The held-out loss while training and at the end, and what the layers do."""

    what: ClassVar[str] = "held-out score"

    kind: Literal["held_out"] = "held_out"
    validations: int = Field(default=20, ge=1, description="points of the held-out loss curve, the last at the end")
    curve_sequences: int = Field(default=32, ge=1, description="held-out sequences that each point averages")
    sequences: int = Field(default=128, ge=1, description="held-out sequences for the loss at the end")
    layers: tuple[float, ...] = Field(default=(0.0, 0.5, 1.0), description="when to look at the layers: share of steps")
    layer_sequences: int = Field(default=8, ge=1, description="sequences for the measures of layers")
    gradient_batches: int = Field(default=4, ge=1, description="batches that the gradients of layers are averaged over")
    prune: bool = Field(default=True, description="skip every layer, and remove the least useful ones in turn")

    @classmethod
    def scaled(cls, *, steps: int, batch: int, depth: int) -> Self:
        """Sizes that cost about a quarter of a run, within bounds: a forward pass is a third of a step's work."""
        work = 3 * steps * batch  # forward passes of one sequence
        points = 20 if steps >= 400 else 10
        return cls(
            validations=points,
            curve_sequences=_between(8, 0.08 * work / points, 64),
            sequences=_between(64, 0.04 * work, 256),
            layer_sequences=_between(4, 0.08 * work / (4.5 * depth), 16),
        )

    def passes(self, depth: int) -> float:
        """Forward passes of one sequence that all this takes."""
        own = (1.5 * depth if self.prune else 0) + 3 + 3 * self.gradient_batches
        effects = (2 * depth + 1) * min(EFFECT_SEQUENCES, self.layer_sequences)
        looks = len(self.layers) * (own * self.layer_sequences + effects)
        return looks + self.validations * self.curve_sequences + 3 * self.sequences


class ByLength(Config):
    """Raw, EMA and BEMA weights at every length, against the exact law where the task has one."""

    what: ClassVar[str] = "score by length"

    kind: Literal["by_length"] = "by_length"
    lengths: tuple[int, ...] = Field(min_length=1, strict=False)
    count: int = Field(default=256, ge=1, description="sequences at each length")
    task: AnyTask | None = Field(default=None, description="score on this task instead, for example deeper Dyck")


def _between(low: int, value: float, high: int) -> int:
    return max(low, min(high, round(value)))
