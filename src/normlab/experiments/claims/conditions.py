"""What a run must have before it may decide: length, and something learned.

Below it the claim is undecided, whatever the numbers say, in both directions: a network that has learned nothing can refute
nothing. The interval is printed all the same, with the budget that would decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from normlab.experiments.claims.criteria import Criterion, Inside, Judgement
from normlab.experiments.claims.evidence import Evidence


@dataclass(frozen=True)
class LongEnough(Criterion):
    """`main`, from `least` of a setting of the runs on (steps, tokens per parameter); `hours` of one core reach that."""

    main: Criterion
    setting: str
    least: float
    hours: float

    def text(self) -> str:
        return f"{self.main.text()}; decided from {self.least:,g} {self.setting} on"

    def judge(self, evidence: Evidence) -> Judgement:
        found = self.main.judge(evidence)
        given = evidence.settings.get(self.setting)
        if isinstance(given, (int, float)) and given >= self.least:
            return found
        has = f"{given:,.6g}" if isinstance(given, (int, float)) else "an unknown number"
        cost = f"about {self.hours:.2g} hours on one core"
        return _open(found, f"{self.least:,.12g} {self.setting} would decide it, {cost}; these runs have {has}.")

    def leaves(self) -> Iterator[Criterion]:
        yield from self.main.leaves()


@dataclass(frozen=True)
class WhereLearned(Criterion):
    """`main`, where the networks have learned what the claim takes for granted."""

    main: Criterion
    conditions: tuple[Inside, ...]

    def text(self) -> str:
        return f"{self.main.text()}; decided only where " + "; and ".join(part.text() for part in self.conditions)

    def judge(self, evidence: Evidence) -> Judgement:
        found = self.main.judge(evidence)
        seen = tuple(reading for part in self.conditions for reading in part.judge(evidence).readings)
        told = replace(found, beside=(*found.beside, *seen))
        missed = [reading.label for reading in seen if reading.holds is not True]
        if not missed:
            return told
        return _open(
            told,
            f"Longer training would decide it ({evidence.twice}): these networks have not learned enough "
            f"({', '.join(missed)}).",
        )

    def leaves(self) -> Iterator[Criterion]:
        yield from self.main.leaves()


def _open(found: Judgement, why: str) -> Judgement:
    return replace(found, p_for=1.0, p_against=1.0, misprint=False, lacking=(*found.lacking, why))
