"""The ladder in sentences: what training for ten tokens a parameter says, from docs/results/ladder-small/rows.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from normlab.experiments.compare.result import SettingResult
from normlab.files import write_json

FILE = Path(__file__).parents[2] / "docs" / "results" / "ladder-small" / "rows.json"
CONTROL = "dense_former"  # weighs depth with numbers that no token changes


@dataclass(frozen=True)
class Step:
    """A scheme's held-out loss minus Pre-Norm's, paired over seeds; p after Holm's correction; its step's time."""

    scheme: str
    gap: float
    low: float
    high: float
    p: float
    time: float | None

    @property
    def sure(self) -> bool:
        return self.p < 0.05

    @property
    def words(self) -> str:
        return f"`{self.scheme}` {self.gap:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class Ladder:
    depth: int
    dim: int
    tokens: int
    seeds: int
    steps: tuple[Step, ...]

    @property
    def shape(self) -> str:
        return f"{self.depth} layers of width {self.dim}, n = {self.seeds}"

    @property
    def lower(self) -> list[str]:
        """Who ends below Pre-Norm for certain."""
        return [step.words for step in self.steps if step.sure and step.gap < 0]

    @property
    def answer(self) -> str:
        """A sentence, then a line for each that ends lower."""
        if not self.lower:
            return f"Trained for ten tokens a parameter ({self.shape}) none ends surely lower than tuned Pre-Norm."
        lines = "".join(f"\n- {words} nats" for words in self.lower)
        begun = f"Trained for ten tokens a parameter ({self.shape}), these end lower than tuned Pre-Norm"
        return f"{begun}, p < 0.05 after Holm's correction:\n{lines}"

    @property
    def has_control(self) -> bool:
        return any(step.scheme == CONTROL for step in self.steps)

    @property
    def control(self) -> str:
        (step,) = (step for step in self.steps if step.scheme == CONTROL)
        verdict = "ends apart from Pre-Norm too" if step.sure else "is not told apart from Pre-Norm"
        return f"A control whose weights over depth do not depend on the input {verdict}: {step.words}."

    @property
    def higher(self) -> str:
        found = [step.words for step in self.steps if step.sure and step.gap > 0]
        return f"Surely higher: {', '.join(found) or 'none'}."


def of(setting: SettingResult) -> Ladder:
    shape, seeds = setting.setting, min(len(row.losses) for row in setting.schemes)
    steps = []
    for row in setting.schemes:
        gap = row.difference
        if (
            row.scheme == setting.baseline
            or gap.mean is None
            or gap.low is None
            or gap.high is None
            or gap.adjusted is None
        ):
            continue
        time = row.cost.time if row.cost else None
        steps.append(Step(row.scheme, gap.mean, gap.low, gap.high, gap.adjusted, time))
    return Ladder(shape.depth, shape.dim, shape.tokens, seeds, tuple(sorted(steps, key=lambda step: step.gap)))


def store(found: Ladder) -> None:
    write_json(FILE, asdict(found))


def stored() -> Ladder:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    return Ladder(**{**kept, "steps": tuple(Step(**row) for row in kept["steps"])})
