"""The ladder in sentences: what training for ten tokens a parameter says, from docs/results/ladder-small/rows.json.

No order of schemes is printed. In the stored sweeps each scheme has its authors' start at width 32; a start moves the loss
more than a placement does; differences are grouped by what stands in the way of comparing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from normlab.experiments.compare.result import SettingResult
from normlab.files import write_json

FILE = Path(__file__).parents[2] / "docs" / "results" / "ladder-small" / "rows.json"
KIND = "small trained models"
SAME_START = {"block_attn_res", "dense_former"}
"""In the stored sweeps these start as pre_norm does: embedding and every matrix. The others' matrices or embedding differ."""
HEADLINE = ("peri_norm", "siamese_norm")  # what the README said to be lower than tuned Pre-Norm
FAIR_GAIN = "0.131 nats (0.101 to 0.160, n = 5)"  # claim 004-09 says how it was measured
FAIR_DIFFERENCES = (
    "At the fair start, each at its best rate inside the grid, the losses of four schemes lie within 0.02 nats of each other "
    "at the widths 32 and 64 (n = 1, so no verdict; small trained models, [docs/start.md](start.md))."
)


@dataclass(frozen=True)
class Step:
    """A scheme's held-out loss minus Pre-Norm's, paired over seeds; p after Holm's correction; its step's time.

    `at_end`: its best rate, or Pre-Norm's, is the smallest or the largest that was tried.
    """

    scheme: str
    gap: float
    low: float
    high: float
    p: float
    time: float | None
    at_end: bool = False

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
        return f"{KIND} of {self.depth} layers, width {self.dim}, {round(self.tokens / 10, -3):,.0f} parameters"

    @property
    def groups(self) -> dict[str, list[Step]]:
        """The differences, by what stands in the way of comparing; by name, because no order is meant."""
        inside = [step for step in self.steps if not step.at_end]
        found = {
            "Same start as Pre-Norm": [step for step in inside if step.scheme in SAME_START],
            "Another start, so that the number is not about the placement": [
                step for step in inside if step.scheme not in SAME_START
            ],
            "Best rate at the end of the grid": [step for step in self.steps if step.at_end],
        }
        return {title: sorted(steps, key=lambda step: step.scheme) for title, steps in found.items() if steps}

    @property
    def answer(self) -> str:
        """A sentence, then a line for each group."""
        lines = "".join(f"\n- {title}: {_words(steps)}." for title, steps in self.groups.items())
        return f"Held-out loss minus Pre-Norm's after ten tokens a parameter ({self.shape}, n = {self.seeds}), nats:\n{lines}"

    @property
    def short(self) -> str:
        parts = " ".join(f"{title}: {_words(steps)}." for title, steps in self.groups.items())
        return f"ten tokens a parameter ({self.shape}, n = {self.seeds}), nats against Pre-Norm. {parts}"

    def __getitem__(self, scheme: str) -> Step:
        return next(step for step in self.steps if step.scheme == scheme)

    @property
    def correction(self) -> str:
        """What was said of this ladder in front, and why it was wrong."""
        first, second = (self[name] for name in HEADLINE)
        return (
            f"Until 2026-11-19 this page said that `{first.scheme}` ends {-first.gap:.3f} nats below tuned Pre-Norm and "
            f"`{second.scheme}` {-second.gap:.3f} ({KIND}, n = {self.seeds}). That was our initialisation and is taken back: "
            f"with a start in proportion to the width Pre-Norm gains {FAIR_GAIN}."
        )


def _words(steps: Sequence[Step]) -> str:
    return ", ".join(step.words for step in steps)


def of(setting: SettingResult, *, at_end: Collection[str] = ()) -> Ladder:
    """`at_end`: the schemes whose best rate is the smallest or the largest that was tried."""
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
        ends = row.scheme in at_end or setting.baseline in at_end
        steps.append(Step(row.scheme, gap.mean, gap.low, gap.high, gap.adjusted, time, ends))
    return Ladder(shape.depth, shape.dim, shape.tokens, seeds, tuple(sorted(steps, key=lambda step: step.scheme)))


def store(found: Ladder) -> None:
    write_json(FILE, asdict(found))


def stored() -> Ladder:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    return Ladder(**{**kept, "steps": tuple(Step(**row) for row in kept["steps"])})
